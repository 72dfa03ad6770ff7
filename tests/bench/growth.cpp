// SPDX-License-Identifier: MIT
//
// How the time of a message grows with the keys that are stored already.
//
//   growth CSV [ROUNDS [MESSAGES [KEYS...]]]
//
// Tables of so many keys (default: 10000 1000000) are filled beforehand, each with ids in the order of time, as UUIDv7
// are, and once more with random ones, as UUIDv4 are; what is handled then has ids of the same kind. Every table takes
// its turn in every round. Twice: as the server comes, and without waiting for its disk, which hides the difference.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "bench/results.hpp"
#include "support/server.hpp"

namespace {

using Clock = std::chrono::steady_clock;

enum class Ids { in_time_order, random };

struct Paid {
  std::string id;
  std::int64_t account;
};

idem::Event event_of(const Paid& m) {
  return {.tenant = "acme", .id = m.id, .fingerprint = idem::fingerprint_of(m.account), .delivery_count = 1};
}

void credit(idem::postgres::Transaction& tx, const Paid& m) {
  idem::postgres::exec(tx, "UPDATE growth_accounts SET cents = cents + $1 WHERE id = $2", 1, m.account);
}

/// A schema that holds so many keys, and a worker on it.
class Table {
 public:
  Table(std::int64_t keys, Ids ids, const std::string& dsn)
      : ids_{ids},
        name_{fmt::format("{} keys: ids {}", keys, ids == Ids::random ? "at random" : "in order")},
        schema_{fmt::format("growth_{}_{}", keys, ids == Ids::random ? "random" : "ordered")},
        store_{dsn, {.schema = schema_}},
        consumer_{"bench.v1", store_, &credit} {}

  void fill(std::int64_t keys) {
    idem::tests::execute("DROP SCHEMA IF EXISTS " + schema_ + " CASCADE");
    store_.create_schema();
    const std::string_view id =
        ids_ == Ids::random ? "md5(i::text)" : "to_char(i, 'FM000000000000000000000')";
    idem::tests::execute(fmt::format(
        "INSERT INTO {}.keys (tenant, consumer, event_id, claim_token, fingerprint) SELECT 'acme', 'bench.v1', "
        "{}, gen_random_uuid(), decode(repeat('01', 34), 'hex') FROM generate_series(1, {}) i",
        schema_, id, keys));
    idem::tests::execute("VACUUM ANALYZE " + schema_ + ".keys");
  }

  /// The times of so many messages, in microseconds.
  std::vector<double> handle(int messages) {
    std::vector<double> times;
    for (int i = 0; i < messages; ++i) {
      const Paid message = next();
      const auto begun = Clock::now();
      if (consumer_(message).status != idem::Status::applied) throw std::runtime_error{"not applied"};
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
    }
    return times;
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  Paid next() {
    ++number_;
    const auto account = static_cast<std::int64_t>(random_() % 10'000) + 1;
    if (ids_ == Ids::random) return {fmt::format("{:016x}{:016x}", random_(), random_()), account};
    // Behind all that were stored, whoever stored them.
    return {fmt::format("9{:020}",
                        std::chrono::system_clock::now().time_since_epoch().count() * 10 + number_ % 10),
            account};
  }

  Ids ids_;
  std::string name_;
  std::string schema_;
  idem::PostgresStore store_;
  idem::IdempotentConsumer<idem::PostgresStore, decltype(&credit)> consumer_;
  std::int64_t number_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// How far the server's log has come, in bytes.
double log_end() {
  return std::stod(idem::tests::query_value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: growth CSV [ROUNDS [MESSAGES [KEYS...]]]\n";
    return 2;
  }
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const int messages = argc > 3 ? std::atoi(argv[3]) : 150;
  std::vector<std::int64_t> sizes;
  for (int i = 4; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {10'000, 1'000'000};
  idem::bench::Results results{argv[1], "growth"};
  idem::tests::execute(
      "DROP TABLE IF EXISTS growth_accounts; CREATE TABLE growth_accounts (id bigint PRIMARY KEY, cents bigint "
      "NOT NULL) WITH (fillfactor = 50); INSERT INTO growth_accounts SELECT i, 0 FROM generate_series(1, 10000) i");
  for (const char* commits : {"on", "off"}) {
    const std::string dsn = fmt::format("options='-c synchronous_commit={}'", commits);
    const std::string suffix = *commits == 'o' && commits[1] == 'f' ? ": no wait for the disk" : "";
    std::vector<std::unique_ptr<Table>> tables;
    for (const std::int64_t keys : sizes)
      for (const Ids ids : {Ids::in_time_order, Ids::random}) {
        tables.push_back(std::make_unique<Table>(keys, ids, dsn));
        if (suffix.empty()) tables.back()->fill(keys);
      }
    if (suffix.empty()) idem::tests::execute("CHECKPOINT");
    for (int round = 0; round <= rounds; ++round)
      for (const auto& table : tables) {
        const double log_before = log_end();
        const double time = median(table->handle(messages));
        if (round == 0) continue;  // connects and warms up
        results.add(table->name() + suffix, 1, 0, round, time, "us");
        results.add(table->name() + suffix, 1, 0, round, (log_end() - log_before) / messages,
                    "bytes of log a message");
      }
  }
}
