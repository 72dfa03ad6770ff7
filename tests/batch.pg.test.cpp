// SPDX-License-Identifier: MIT
#include <idem/batch.hpp>

#include <algorithm>
#include <atomic>
#include <thread>

#include "conformance/batches.hpp"
#include "faults/ledger.hpp"
#include "support/catch.hpp"

namespace idem::tests::batches {

namespace {

class OnPostgres {
 public:
  using Transaction = postgres::Transaction;
  PostgresStore& store() { return store_; }
  void book(Transaction& tx, const std::string& id) {
    postgres::exec(tx, "INSERT INTO " + ledger_.effects() + " VALUES ($1, 1)", id);
  }
  [[nodiscard]] std::vector<std::string> booked() const {
    pqxx::connection connection{server_dsn()};
    pqxx::nontransaction session{connection};
    std::vector<std::string> ids;
    for (const auto& row :
         session.exec("SELECT event FROM " + ledger_.effects() + " ORDER BY event COLLATE \"C\""))
      ids.emplace_back(row[0].c_str());
    return ids;
  }

 private:
  faults::Ledger ledger_;
  PostgresStore store_{server_dsn(), ledger_.options()};
};

std::vector<Job> hundred(const std::string& prefix) {
  std::vector<Job> jobs;
  for (int i = 0; i < 100; ++i) jobs.push_back({prefix + std::to_string(i)});
  return jobs;
}

}  // namespace

TEST_CASE("batches on PostgreSQL") { batch_behaviours<OnPostgres>(); }

TEST_CASE("a batch of a hundred costs 102 round trips with a one-statement handler, 3 with a bulk one") {
  const faults::Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const std::string insert = "INSERT INTO " + ledger.effects() + " VALUES ($1, 1)";
  const IdempotentConsumer each{"each.v1", store, [&](postgres::Transaction& tx, const Job& job) {
                                  postgres::exec(tx, insert, job.id);
                                  return job.amount;
                                }};
  const IdempotentConsumer bulk{
      "bulk.v1", store, [&](postgres::Transaction& tx, std::span<const Job* const> jobs) {
        postgres::exec(
            tx, "INSERT INTO " + ledger.effects() + " SELECT 'x', n FROM generate_series(1, $1::int) n",
            jobs.size());
      }};
  CHECK(each(Job{"warm-up-1"}).status == Status::applied);
  CHECK(each(Job{"warm-up-2"}).status == Status::applied);  // and the statement is prepared

  proxy.reset_counts();
  CHECK(each.process_batch(hundred("a")).all_acknowledged());
  CHECK(proxy.round_trips() == 102);
  proxy.reset_counts();
  CHECK(bulk.process_batch(hundred("a")).all_acknowledged());
  CHECK(proxy.round_trips() == 3);
  proxy.reset_counts();
  CHECK(bulk.process_batch(hundred("a")).all_acknowledged());  // duplicates
  CHECK(proxy.round_trips() == 3);
}

TEST_CASE("a batch whose COMMIT answer is lost is found committed, or runs again, message by message") {
  const auto [cut, starts] = GENERATE(table<Cut, unsigned>({{Cut::answer, 1}, {Cut::before_server, 2}}));
  CAPTURE(name_of(cut));
  const faults::Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer each{"each.v1", store, [&](postgres::Transaction& tx, const Job& job) {
                                  postgres::exec(tx, "INSERT INTO " + ledger.effects() + " VALUES ($1, 1)",
                                                 job.id);
                                  return job.amount;
                                }};
  proxy.arm({.cut = cut, .word = "COMMIT"});
  const auto report = each.process_batch(std::vector<Job>{{"a", 5}, {"b", 6}, {"c", 7}});
  CHECK(proxy.fired() == 1);
  for (const auto& outcome : report.outcomes) {
    CHECK(outcome.status == Status::applied);
    CHECK(outcome.resolved_in_doubt);
    CHECK(outcome.attempts == starts);
  }
  CHECK(report.outcomes[2].value == 7);
  for (const char* id : {"a", "b", "c"}) CHECK(ledger.count(id) == 1);
}

TEST_CASE("two batches with the same hundred keys in opposite order never deadlock") {
  constexpr int rounds = 1'000;  // of four batches, two each way
  const faults::Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(4)};
  const IdempotentConsumer bulk{
      "bulk.v1", store, [&](postgres::Transaction& tx, std::span<const Job* const> jobs) {
        postgres::exec(
            tx, "INSERT INTO " + ledger.effects() + " SELECT 'x', n FROM generate_series(1, $1::int) n",
            jobs.size());
      }};
  std::atomic<int> failed = 0;
  for (int round = 0; round < rounds; ++round) {
    auto forwards = hundred("r" + std::to_string(round) + "-");
    auto backwards = forwards;
    std::reverse(backwards.begin(), backwards.end());
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        const auto report = bulk.process_batch(i % 2 == 0 ? forwards : backwards);
        failed += static_cast<int>(report.failed().size());
      });
    for (auto& thread : threads) thread.join();
  }
  CHECK(failed == 0);
  CHECK(query_value("SELECT count(*) FROM " + ledger.effects()) == std::to_string(rounds * 100));
  CHECK(query_value("SELECT count(*) FROM " + ledger.keys()) == std::to_string(rounds * 100));
}

TEST_CASE("a batch waits for a busy key no longer than the limit in all, then one by one") {
  const faults::Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(2)};
  const IdempotentConsumer each{"each.v1", store, [](postgres::Transaction&, const Job&) {},
                                ConsumerOptions{.wait_limit = 300ms}};
  pqxx::connection connection{server_dsn()};
  pqxx::work other{connection};
  other.exec("INSERT INTO " + ledger.keys() +
             " (tenant, consumer, event_id, claim_token) VALUES ('acme', 'each.v1', 'b', gen_random_uuid())");
  const auto report = each.process_batch(std::vector<Job>{{"a"}, {"b"}, {"c"}});
  CHECK(statuses(report) == Told{"applied", "in_progress 55P03", "applied"});
}

}  // namespace idem::tests::batches
