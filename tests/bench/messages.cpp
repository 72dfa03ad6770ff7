// SPDX-License-Identifier: MIT
//
// How many messages a second, side by side: the same one-statement handler with and without deduplication.
//
//   messages CSV [ROUNDS [SECONDS]]
//
// Every contender takes its turn in every round, for so many seconds, so that what else the machine does meets all
// of them. The server is found as libpq finds it (PGHOST is its socket's folder), pgbench in IDEM_TEST_PGBIN or PATH.

#include <pqxx/pqxx>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "bench/results.hpp"
#include "support/fault_proxy.hpp"
#include "support/server.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Paid {
  std::string id;
  std::int64_t account = 1;
  std::int64_t delivery = 1;
};

idem::Event event_of(const Paid& m) {
  return {.tenant = "acme",
          .id = m.id,
          .fingerprint = idem::fingerprint_of(m.account),
          .delivery_count = m.delivery};
}

constexpr std::string_view effect = "UPDATE bench.accounts SET cents = cents + $1 WHERE id = $2";

void credit(idem::postgres::Transaction& tx, const Paid& m) {
  idem::postgres::exec(tx, effect, 1, m.account);
}
idem::postgres::Statement said(const Paid& m) { return idem::postgres::Statement{effect, 1, m.account}; }
void credit_all(idem::postgres::Transaction& tx, std::span<const Paid* const> all) {
  std::string ids;
  for (const Paid* m : all) ids += fmt::format("{}{}", ids.empty() ? '{' : ',', m->account);
  idem::postgres::exec(tx,
                       "UPDATE bench.accounts a SET cents = cents + n FROM (SELECT id, count(*) n FROM "
                       "unnest($1::bigint[]) AS u (id) GROUP BY id ORDER BY id) s WHERE a.id = s.id",
                       ids + '}');
}

/// Events with ids that grow with time, as UUIDv7 do; each is made once.
Paid fresh(int worker) {
  thread_local std::uint64_t number = 0;
  thread_local std::uint64_t random = 88172645463325252U;
  random ^= random << 13U;
  random ^= random >> 7U;
  random ^= random << 17U;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {
      .id = fmt::format("{:016x}-{:04x}-{:014x}", std::chrono::nanoseconds{now}.count(), worker, ++number),
      .account =
          worker * 1'000 + static_cast<std::int64_t>(random % 1'000) + 1};  // no two workers wait for one row
}

/// Does one turn and says how many messages that were.
using Turn = std::function<std::size_t()>;

struct Contender {
  std::string name;
  std::function<Turn(const std::string& dsn, int worker)> hire;
};

constexpr std::size_t batch = 100;

/// A worker's own store and consumer: what is shared by threads is measured by what they share, the server.
template <class Handler>
struct Desk {
  idem::PostgresStore store;
  idem::IdempotentConsumer<idem::PostgresStore, Handler> consumer;
  Desk(const std::string& dsn, Handler handler)
      : store{dsn, {.schema = "bench"}}, consumer{"bench.v1", store, std::move(handler)} {}
};

template <class Handler>
auto one_by_one(Handler handler) {
  return [handler](const std::string& dsn, int worker) -> Turn {
    auto desk = std::make_shared<Desk<Handler>>(dsn, handler);
    return
        [desk, worker] { return std::size_t{desk->consumer(fresh(worker)).status == idem::Status::applied}; };
  };
}

template <class Handler>
auto in_batches(Handler handler) {
  return [handler](const std::string& dsn, int worker) -> Turn {
    auto desk = std::make_shared<Desk<Handler>>(dsn, handler);
    return [desk, worker] {
      std::vector<Paid> messages;
      for (std::size_t i = 0; i < batch; ++i) messages.push_back(fresh(worker));
      return desk->consumer.process_batch(messages).all_acknowledged() ? batch : 0;
    };
  };
}

auto duplicates(std::int64_t delivery_count) {
  return [delivery_count](const std::string& dsn, int worker) -> Turn {
    auto desk = std::make_shared<Desk<decltype(&credit)>>(dsn, &credit);
    auto done = std::make_shared<std::vector<Paid>>();
    for (int i = 0; i < 100; ++i) {
      done->push_back(fresh(worker));
      static_cast<void>(desk->consumer(done->back()));
      done->back().delivery = delivery_count;
    }
    return [desk, done, next = std::size_t{0}]() mutable {
      return std::size_t{desk->consumer((*done)[next++ % done->size()]).status == idem::Status::duplicate};
    };
  };
}

auto leases() {
  return [](const std::string& dsn, int worker) -> Turn {
    const auto nothing = [](idem::Lease&, const Paid&) {};
    auto desk = std::make_shared<Desk<std::decay_t<decltype(nothing)>>>(dsn, nothing);
    return
        [desk, worker] { return std::size_t{desk->consumer(fresh(worker)).status == idem::Status::applied}; };
  };
}

Turn plain(const std::string& dsn, int worker) {
  auto connection = std::make_shared<pqxx::connection>(dsn);
  return [connection, worker] {
    const Paid m = fresh(worker);
    pqxx::work tx{*connection};
    idem::postgres::exec(tx, effect, 1, m.account);
    tx.commit();
    return std::size_t{1};
  };
}

/// As people write it: four round trips.
enum class Prepared { no, yes };
enum class Ids { fresh, done_before };

constexpr std::string_view hand_claim =
    "INSERT INTO bench.processed_events (tenant_id, consumer, event_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";

auto hand_written(Prepared prepared, Ids ids) {
  return [prepared, ids](const std::string& dsn, int worker) -> Turn {
    auto connection = std::make_shared<pqxx::connection>(dsn);
    if (prepared == Prepared::yes) {
      connection->prepare("claim", std::string{hand_claim});
      connection->prepare("effect", std::string{effect});
    }
    const auto handle = [connection, prepared](const Paid& m) {
      pqxx::work tx{*connection};
      const auto claimed = prepared == Prepared::yes
                               ? tx.exec_prepared("claim", "acme", "bench.v1", m.id)
                               : idem::postgres::exec(tx, hand_claim, "acme", "bench.v1", m.id);
      if (claimed.affected_rows() == 0) {
        tx.abort();
        return std::size_t{1};
      }
      if (prepared == Prepared::yes)
        tx.exec_prepared("effect", 1, m.account);
      else
        idem::postgres::exec(tx, effect, 1, m.account);
      tx.commit();
      return std::size_t{1};
    };
    if (ids == Ids::fresh) return [handle, worker] { return handle(fresh(worker)); };
    const Paid done = fresh(worker);
    handle(done);
    return [handle, done] { return handle(done); };
  };
}

std::vector<Contender> contenders() {
  return {
      {"a plain transaction", plain},
      {"b by hand", hand_written(Prepared::no, Ids::fresh)},
      {"b by hand: prepared", hand_written(Prepared::yes, Ids::fresh)},
      {"c idem", one_by_one(&credit)},
      {"d idem: batch of 100", in_batches(&credit)},
      {"e idem: batch of 100 in bulk", in_batches(&credit_all)},
      {"f duplicates: by hand", hand_written(Prepared::no, Ids::done_before)},
      {"f duplicates: idem", duplicates(1)},
      {"f duplicates: idem redelivered", duplicates(2)},
      {"g idem: lease", leases()},
      {"i idem: one message", one_by_one(&said)},
  };
}

/// A contender's workers, each on connections of its own.
class Crew {
 public:
  Crew(const Contender& contender, const std::string& dsn, int workers)
      : turns_(static_cast<std::size_t>(workers)) {
    together([&](std::size_t w) {
      turns_[w] = contender.hire(dsn, static_cast<int>(w));
      for (int warm = 0; warm < 6; ++warm) turns_[w]();  // connected, and the plans are the generic ones
    });
  }

  /// Messages a second.
  double work(Clock::duration span) {
    std::atomic<std::size_t> messages{0};
    const auto begun = Clock::now();
    together([&](std::size_t w) {
      std::size_t mine = 0;
      while (Clock::now() - begun < span) mine += turns_[w]();
      messages += mine;
    });
    return static_cast<double>(messages) / std::chrono::duration<double>(Clock::now() - begun).count();
  }

 private:
  template <class Work>
  void together(Work work) {
    std::vector<std::jthread> threads;
    for (std::size_t w = 0; w < turns_.size(); ++w) threads.emplace_back([&work, w] { work(w); });
  }

  std::vector<Turn> turns_;
};

/// What 1,000 duplicates add to the server's log, in bytes; the least of some tries, for the server writes now and
/// then by itself.
double log_of_duplicates(const Contender& contender, const std::string& dsn) {
  const Turn turn = contender.hire(dsn, 0);
  const auto log_end = [] {
    return std::stod(idem::tests::query_value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"));
  };
  double least = std::numeric_limits<double>::max();
  for (int tries = 0; tries < 3 && least > 0; ++tries) {
    const double before = log_end();
    for (int i = 0; i < 1'000; ++i) turn();
    least = std::min(least, log_end() - before);
  }
  return least;
}

/// The same four statements, prepared, from the server's own benchmark. -1: it failed.
double pgbench_rate(const std::string& host, int workers, int seconds) {
  const std::string script = idem::tests::server_socket_dir() + "/four.sql";
  std::ofstream{script}
      << "\\set n :n + 1\n"
         "\\set account random(1, 10000)\n"
         "\\set id :base + :client_id * 1000000000 + :n\n"
         "BEGIN;\n"
         "INSERT INTO bench.keys (tenant, consumer, event_id, claim_token, fingerprint) VALUES ('acme', "
         "'pgbench', :id, gen_random_uuid(), NULL) ON CONFLICT (tenant, consumer, event_id) DO NOTHING;\n"
         "UPDATE bench.accounts SET cents = cents + 1 WHERE id = :account;\n"
         "COMMIT;\n";
  const auto base = std::chrono::system_clock::now().time_since_epoch().count();
  const char* folder = std::getenv("IDEM_TEST_PGBIN");
  const std::string command = fmt::format(
      "'{}pgbench' -n -M prepared -f '{}' -D n=0 -D base={} -c {} -j {} -T {} -h '{}' -p 5432 2>&1",
      folder == nullptr ? std::string{} : folder + std::string{"/"}, script, base, workers,
      std::min(workers, 2), seconds, host);
  double rate = -1;
  if (FILE* out = ::popen(command.c_str(), "r")) {
    char line[512];
    while (std::fgets(line, sizeof line, out) != nullptr) std::sscanf(line, "tps = %lf", &rate);
    ::pclose(out);
  }
  if (rate < 0) throw std::runtime_error{"pgbench failed: " + command};
  return rate;
}

void make_tables() {
  idem::tests::execute("DROP SCHEMA IF EXISTS bench CASCADE");
  idem::PostgresStore{"", {.schema = "bench"}}.create_schema();
  idem::tests::execute(
      "CREATE TABLE bench.accounts (id bigint PRIMARY KEY, cents bigint NOT NULL) WITH (fillfactor = 50);"
      "INSERT INTO bench.accounts SELECT i, 0 FROM generate_series(1, 10000) i;"
      "CREATE TABLE bench.processed_events (tenant_id text, consumer text, event_id text, "
      "processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (tenant_id, consumer, event_id))");
  idem::tests::execute("VACUUM ANALYZE bench.accounts");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: messages CSV [ROUNDS [SECONDS]]\n";
    return 2;
  }
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.4;
  const auto span = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>{seconds});
  make_tables();
  idem::bench::Results results{argv[1], "messages"};
  const std::vector<Contender> all = contenders();
  for (const int added_ms : {0, 1}) {
    std::optional<idem::tests::FaultProxy> proxy;
    std::string host = idem::tests::server_socket_dir();
    if (added_ms > 0) {
      proxy.emplace(host);
      proxy->set_delay(std::chrono::milliseconds{added_ms});
      host = proxy->dsn().substr(5, proxy->dsn().find(" port") - 5);
    }
    const std::string dsn = "host=" + host + " port=5432";
    if (added_ms == 0)
      for (const Contender& contender : all)
        if (contender.name.starts_with("f "))
          results.add(contender.name, 1, 0, 1, log_of_duplicates(contender, dsn), "bytes of log per 1000");
    for (const int workers : {1, 8}) {
      std::vector<Crew> crews;
      for (const Contender& contender : all) crews.emplace_back(contender, dsn, workers);
      for (int round = 1; round <= rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i)
          results.add(all[i].name, workers, added_ms, round, crews[i].work(span), "per second");
        results.add("h pgbench: four prepared statements", workers, added_ms, round,
                    pgbench_rate(host, workers, 1), "per second");
      }
      std::cerr << fmt::format("{} worker(s), {} ms added: done\n", workers, added_ms);
    }
  }
}
