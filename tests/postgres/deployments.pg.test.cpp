// SPDX-License-Identifier: MIT
// PostgreSQL as people run it: behind a transaction pooler, under row security, with settings on the role.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "faults/ledger.hpp"
#include "faults/slow_commit.hpp"
#include "postgres/playground.hpp"
#include "support/pgbouncer.hpp"

#include "support/catch.hpp"

namespace idem::tests::deployed {

using namespace std::chrono_literals;

namespace {

/// A playground behind a pooler with two connections to the server.
struct Pooled {
  Playground place{"pooled"};
  PgBouncer pooler{2, server_socket_dir()};
  std::string insert = "INSERT INTO " + place.effects() + " (id, note) VALUES ($1, $2)";

  Pooled() { store(1)->create_schema(); }

  [[nodiscard]] std::unique_ptr<PostgresStore> store(std::size_t connections) const {
    return std::make_unique<PostgresStore>(
        pooler.dsn(), PostgresOptions{.schema = place.schema(), .max_connections = connections});
  }
  [[nodiscard]] std::string doubled() const {
    return place.value("SELECT count(*) - count(DISTINCT id) FROM " + place.effects());
  }
};

/// Runs `work(thread)` on so many threads; what they threw.
std::string on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::string> thrown(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&work, &what = thrown[static_cast<std::size_t>(i)], i] {
      try {
        work(i);
      } catch (const std::exception& e) {
        what = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  std::string all;
  for (const auto& what : thrown)
    if (!what.empty()) all += what + "\n";
  return all;
}

/// What many deliveries came to.
struct Tally {
  std::atomic<int> applied = 0;
  std::atomic<int> duplicate = 0;
  std::atomic<int> mismatch = 0;
  std::atomic<int> other = 0;

  template <class R>
  void count(const Outcome<R>& outcome) {
    switch (outcome.status) {
      case Status::applied: ++applied; break;
      case Status::duplicate: ++duplicate; break;
      case Status::mismatch: ++mismatch; break;
      default: ++other; UNSCOPED_INFO_LOCKED(told(outcome));
    }
  }
  std::mutex lock_;
  std::vector<std::string> others;
  void UNSCOPED_INFO_LOCKED(const std::string& what) {
    const std::lock_guard lock{lock_};
    others.push_back(what);
  }
};

}  // namespace

TEST_CASE("a statement's name that another client's session took costs a handler nothing", "[deployments]") {
  Playground place{"dep_taken"};
  const int times = GENERATE(1, 2);
  CAPTURE(times);
  pqxx::connection* last = nullptr;
  PostgresStore store{[&] {
                        auto connection = std::make_unique<pqxx::connection>(server_dsn());
                        last = connection.get();
                        return connection;
                      },
                      {.schema = place.schema(), .max_connections = 1}};
  store.create_schema();
  const std::string sql = "INSERT INTO " + place.effects() + " (id) VALUES ($1)";
  const IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                      for (int i = 0; i < times; ++i) postgres::exec(tx, sql, note.id);
                                    }};
  const auto first = consumer(Note{"e-1"});
  if (times == 1) CHECK(told(first) == "applied");
  pqxx::nontransaction{*last}.exec("PREPARE " + postgres::detail::name_of("effect", sql) + " AS SELECT 1");
  const auto second = consumer(Note{"e-2"});
  CHECK(told(second) == "applied");
  CHECK(second.attempts == 1);
}

}  // namespace idem::tests::deployed
