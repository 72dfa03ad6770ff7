// SPDX-License-Identifier: MIT
#include <idem/consumer.hpp>

#include <future>
#include <optional>
#include <string>
#include <string_view>

#include <pqxx/pqxx>

#include <idem/postgres/claim.hpp>
#include <idem/postgres/store.hpp>

#include "conformance/consumer.hpp"
#include "conformance/postgres_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

struct RepeatableReadBench : PostgresBench {
  RepeatableReadBench() : PostgresBench{Isolation::repeatable_read} {}
};
struct SerializableBench : PostgresBench {
  SerializableBench() : PostgresBench{Isolation::serializable} {}
};

/// A consumer whose handler runs one statement, after the effect.
[[nodiscard]] auto running(PostgresBench& bench, std::string sql) {
  return [&bench, sql = std::move(sql)](postgres::Transaction& tx, const Payment& p) {
    bench.write(tx, p.amount);
    postgres::exec(tx, sql);
  };
}

}  // namespace

TEST_CASE("a consumer on a PostgresStore: keys", "[consumer]") { show_all(key_behaviours<PostgresBench>()); }
TEST_CASE("a consumer on a PostgresStore: fingerprints and values", "[consumer]") {
  show_all(fingerprint_behaviours<PostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: failures", "[consumer]") {
  show_all(failure_behaviours<PostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: concurrency", "[consumer]") {
  show_all(concurrency_behaviours<PostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore at repeatable read: concurrency", "[consumer]") {
  show_all(concurrency_behaviours<RepeatableReadBench>());
}
TEST_CASE("a consumer on a PostgresStore at serializable: concurrency", "[consumer]") {
  show_all(concurrency_behaviours<SerializableBench>());
}

TEST_CASE("an event claimed in a transaction of another's own is waited for", "[consumer]") {
  PostgresBench bench;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
  const IdempotentConsumer hasty{"pay.v1", bench.store, paying(bench, starts),
                                 ConsumerOptions{.wait_limit = 5ms}};
  const Key key{"", "pay.v1", "p-1"};
  pqxx::connection connection{server_dsn()};

  std::optional<pqxx::work> theirs{std::in_place, connection};
  REQUIRE(postgres::claim(*theirs, key, fingerprint_of(1), bench.schema) == postgres::Claimed::fresh);
  check_outcome(hasty(Payment{}), Status::in_progress, Action::redeliver, 0);
  auto waiting = std::async(std::launch::async, [&] { return pay(Payment{}); });
  bench.until_waited_for(bench.rival());

  SECTION("and is a duplicate when it commits") {
    theirs->commit();
    check_outcome(waiting.get(), Status::duplicate, Action::acknowledge, 0);
    check_outcome(pay(Payment{.amount = 2}), Status::mismatch, Action::dead_letter, 0);
  }
  SECTION("and is taken over when it rolls back") {
    theirs.reset();
    check_outcome(waiting.get(), Status::applied, Action::acknowledge, 1);
    pqxx::work again{connection};
    CHECK(postgres::claim(again, key, fingerprint_of(1), bench.schema) == postgres::Claimed::duplicate);
    CHECK(postgres::claim(again, key, fingerprint_of(2), bench.schema) == postgres::Claimed::mismatch);
  }
}

TEST_CASE("a handler that went on after an SQL error has applied nothing", "[consumer]") {
  PostgresBench bench;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               [&](postgres::Transaction& tx, const Payment& p) {
                                 bench.write(tx, p.amount);
                                 if (++starts > 1) return;
                                 try {
                                   postgres::exec(tx, "SELECT 1 / 0");
                                 } catch (const std::exception&) {
                                 }
                               },
                               each_second(5)};
  const auto outcome = pay(Payment{});
  check_outcome(outcome, Status::deferred, Action::redeliver, 1);
  CHECK(outcome.failure->kind == ErrorClass::transient);
  check_nothing_stored(bench);
  check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
  CHECK(bench.sum() == 1);
}

TEST_CASE("a constraint that fails at COMMIT rejects the event, and leaves it new", "[consumer]") {
  PostgresBench bench;
  execute("ALTER TABLE " + bench.schema +
          ".effects ADD CONSTRAINT once UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED; " + "INSERT INTO " +
          bench.schema + ".effects VALUES (1)");
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), Immediate{} | MaxAttempts{5}};
  for (int i = 1; i <= 2; ++i) {
    const auto outcome = pay(Payment{});
    check_outcome(outcome, Status::rejected, Action::dead_letter, 1);
    CHECK(outcome.failure->code == "23505");
    CHECK_FALSE(contains(outcome.failure->message, "Key ("));
    CHECK(starts == i);
    CHECK(bench.keys() == 0);
  }
  execute("DELETE FROM " + bench.schema + ".effects");
  check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
}

TEST_CASE("a handler's own SQL that meets a missing table, column, function or right is left to Redeliver",
          "[consumer]") {
  PostgresBench bench;
  for (const std::string_view sql : {"SELECT * FROM no_such_table", "SELECT * FROM no_such_schema.t",
                                     "SELECT no_such_column FROM pg_class", "SELECT no_such_function()"}) {
    CAPTURE(sql);
    const IdempotentConsumer pay{"pay.v1", bench.store, running(bench, std::string{sql}),
                                 Immediate{} | MaxAttempts{5}, each_second(2)};
    check_outcome(pay(Payment{.delivery = 1}), Status::deferred, Action::redeliver, 1);
    check_outcome(pay(Payment{.delivery = 2}), Status::rejected, Action::dead_letter, 1);
    check_nothing_stored(bench);
  }
}

TEST_CASE("a connection that is lost before COMMIT is replaced, and the event is never rejected for it",
          "[consumer]") {
  PostgresBench bench;
  int starts = 0;
  const auto cut = [&](postgres::Transaction& tx, const Payment& p) {
    bench.write(tx, p.amount);
    if (++starts % 3 != 0) postgres::exec(tx, "SELECT pg_terminate_backend(pg_backend_pid())");
  };
  const IdempotentConsumer once{"pay.v1", bench.store, cut, each_second(1)};
  const IdempotentConsumer twice{"pay.v1", bench.store, cut, Immediate{} | MaxAttempts{2}, each_second(1)};
  const auto lost = once(Payment{});
  check_outcome(lost, Status::deferred, Action::redeliver, 1);
  CHECK(lost.failure->kind == ErrorClass::reconnect);
  check_nothing_stored(bench);
  check_outcome(twice(Payment{}), Status::applied, Action::acknowledge, 2);
  CHECK(bench.sum() == 1);
}

TEST_CASE("a store that cannot be reached defers, whatever the delivery", "[consumer]") {
  PostgresStore store{"host=/nowhere connect_timeout=1"};
  const IdempotentConsumer pay{"pay.v1", store, [](postgres::Transaction&, const Payment&) {},
                               Immediate{} | MaxAttempts{3}, Redeliver{Intervals{1min} | NoJitter{}}};
  const auto outcome = pay(Payment{.delivery = 1'000});
  check_outcome(outcome, Status::deferred, Action::redeliver, 0);
  CHECK(outcome.failure->kind == ErrorClass::reconnect);
  CHECK(outcome.redeliver_after == 1min);
}

TEST_CASE("a missing schema stops the worker", "[consumer]") {
  PostgresStore store{server_dsn(), {.schema = unique_schema("missing")}};
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", store, [&](postgres::Transaction&, const Payment&) { ++starts; },
                               Immediate{} | MaxAttempts{3}};
  CHECK_THROWS_AS(static_cast<void>(pay(Payment{})), ConfigurationError);
  CHECK_THROWS_AS(store.check(), ConfigurationError);
  CHECK(starts == 0);
}

TEST_CASE("calls that wait for one event leave connections for another", "[consumer]") {
  PostgresBench bench;
  PostgresStore narrow{server_dsn(), {.schema = bench.schema, .max_connections = 2}};
  std::atomic<int> starts = 0;
  std::latch at_work{1};
  std::promise<void> let_go;
  const IdempotentConsumer pay{"pay.v1", narrow,
                               [&](postgres::Transaction&, const Payment& p) {
                                 ++starts;
                                 if (p.id != "hot") return;
                                 at_work.count_down();
                                 let_go.get_future().wait();
                               },
                               ConsumerOptions{.wait_limit = 60s}};
  std::vector<std::future<Outcome<>>> hot;
  for (int i = 0; i < 10; ++i)
    hot.push_back(std::async(std::launch::async, [&] { return pay(Payment{.id = "hot"}); }));
  at_work.wait();
  for (int i = 0; i < 5; ++i)
    CHECK(pay(Payment{.id = "cool-" + std::to_string(i)}).status == Status::applied);
  let_go.set_value();
  for (auto& one : hot) CHECK(one.get().action == Action::acknowledge);
  CHECK(starts == 6);
}

TEST_CASE("a stop ends the wait for a connection, and the event comes back without a delay", "[consumer]") {
  PostgresBench bench;
  PostgresStore narrow{server_dsn(), {.schema = bench.schema, .max_connections = 1}};
  Holder<PostgresBench> holder{bench, narrow};
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", narrow, paying(bench, starts), ConsumerOptions{.wait_limit = 60s}};
  std::stop_source stop;
  std::latch calling{1};
  auto waiting = std::async(std::launch::async, [&] {
    calling.count_down();
    return pay(Payment{.id = "p-2"}, stop.get_token());
  });
  calling.wait();
  stop.request_stop();
  const auto outcome = waiting.get();
  check_outcome(outcome, Status::deferred, Action::redeliver, 0);
  CHECK(outcome.redeliver_after == 0s);
  CHECK(outcome.failure->kind == ErrorClass::cancelled);
}

TEST_CASE("a handler that calls another consumer on the same store has two transactions", "[consumer]") {
  PostgresBench bench;
  int inner_starts = 0;
  const IdempotentConsumer inner{"inner.v1", bench.store, paying(bench, inner_starts)};
  std::optional<Outcome<>> nested;
  const IdempotentConsumer outer{"outer.v1", bench.store, [&](postgres::Transaction& tx, const Payment& p) {
                                   bench.write(tx, 10);
                                   nested = inner(p);
                                   throw PermanentError{"the outer one fails"};
                                 }};
  check_outcome(outer(Payment{}), Status::rejected, Action::dead_letter, 1);
  REQUIRE(nested);
  check_outcome(*nested, Status::applied, Action::acknowledge, 1);
  CHECK(bench.sum() == 1);
}

TEST_CASE("a handler that calls its own consumer for the same event does not hang", "[consumer]") {
  PostgresBench bench;
  int starts = 0;
  const IdempotentConsumer inner{"pay.v1", bench.store, paying(bench, starts),
                                 ConsumerOptions{.wait_limit = 5ms}};
  std::optional<Outcome<>> nested;
  const IdempotentConsumer outer{"pay.v1", bench.store,
                                 [&](postgres::Transaction&, const Payment& p) { nested = inner(p); }};
  check_outcome(outer(Payment{}), Status::applied, Action::acknowledge, 1);
  REQUIRE(nested);
  check_outcome(*nested, Status::in_progress, Action::redeliver, 0);
  CHECK(starts == 0);
}

TEST_CASE("settings of the session, role or database do not change an answer", "[consumer]") {
  PostgresBench bench;
  for (const std::string_view setting :
       {"bytea_output=escape", "standard_conforming_strings=off",
        "default_transaction_isolation=serializable", "client_encoding=LATIN1", "DateStyle=German",
        "search_path=nowhere", "default_transaction_deferrable=on", "lock_timeout=1", "backslash_quote=off",
        "xmlbinary=hex", "extra_float_digits=0"}) {
    CAPTURE(setting);
    PostgresStore store{"options='-c " + std::string{setting} + "'", {.schema = bench.schema}};
    const std::string id = "\xC3\xA9'\\ " + std::string{setting};
    const IdempotentConsumer pay{"pay.v1", store, [](postgres::Transaction&, const Payment&) {
                                   return std::string{"\0\xFF\\", 3};
                                 }};
    check_outcome(pay(Payment{.id = id}), Status::applied, Action::acknowledge, 1);
    const IdempotentConsumer plain{"pay.v1", bench.store,
                                   [](postgres::Transaction&, const Payment&) { return std::string{}; }};
    for (int i = 0; i < 2; ++i) {
      std::optional<Outcome<std::string>> outcome;
      CHECK_NOTHROW(outcome.emplace(i == 0 ? pay(Payment{.id = id}) : plain(Payment{.id = id})));
      if (!outcome) continue;
      check_outcome(*outcome, Status::duplicate, Action::acknowledge, 0);
      CHECK(outcome->value == std::string{"\0\xFF\\", 3});
    }
    std::optional<Outcome<std::string>> other;
    CHECK_NOTHROW(other.emplace(pay(Payment{.id = id, .amount = 2})));
    if (other) check_outcome(*other, Status::mismatch, Action::dead_letter, 0);
  }
}
