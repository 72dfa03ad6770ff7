// SPDX-License-Identifier: MIT
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "faults/ledger.hpp"
#include "faults/slow_commit.hpp"

#include "support/catch.hpp"

namespace idem::tests::faults {

using namespace std::chrono_literals;

namespace {

/// Looks again at once where the library would pause.
Runtime without_pauses() {
  return {.sleeper = [](auto, const std::stop_token&) {}};
}

struct CommitCut {
  Cut cut;
  std::uint32_t starts;  ///< of the handler, until the effect is there
};

}  // namespace

TEST_CASE(
    "a COMMIT whose answer is lost is found committed, one that never arrived runs again: applied once") {
  const auto [cut, starts] = GENERATE(values<CommitCut>({{Cut::answer, 1},
                                                         {Cut::inside_answer, 1},
                                                         {Cut::answer_unawaited, 1},
                                                         {Cut::before_server, 2},
                                                         {Cut::inside, 2}}));
  CAPTURE(name_of(cut));
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};

  proxy.arm({.cut = cut, .word = "COMMIT", .bytes = 20});
  const auto outcome = pay(Payment{"e-1"});

  CHECK(proxy.fired() == 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.action == Action::acknowledge);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == starts);
  CHECK(ledger.count("e-1") == 1);
  CHECK(pay(Payment{"e-1"}).status == Status::duplicate);
}

TEST_CASE("the value of a handler whose COMMIT answer was lost is answered and stored") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, [&](postgres::Transaction& tx, const Payment& payment) {
                                 ledger.book()(tx, payment);
                                 return std::string{"receipt"};
                               }};
  proxy.arm({.cut = Cut::answer, .word = "COMMIT"});
  const auto outcome = pay(Payment{"e-1"});
  CHECK(outcome.value == "receipt");
  CHECK_FALSE(outcome.replayed);
  const auto again = pay(Payment{"e-1"});
  CHECK(again.value == "receipt");
  CHECK(again.replayed);
}

TEST_CASE("whatever round trip is cut, however it is cut, the effect is there once when the call says so") {
  const auto cut =
      GENERATE(Cut::before_server, Cut::inside, Cut::answer_unawaited, Cut::answer, Cut::inside_answer);
  const auto nth = GENERATE(range(std::size_t{1}, std::size_t{9}));
  CAPTURE(name_of(cut), nth);
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), MaxAttempts{2}, without_pauses()};

  // The session's set-up, the claim, the effect, the COMMIT, and the duplicate that follows.
  proxy.arm({.cut = cut, .nth = nth, .bytes = 9});
  deliver_until_applied(ledger, pay);
}

TEST_CASE("the first doubt of a call that turns out aborted is free, later ones count as attempts") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  proxy.arm({.cut = Cut::before_server, .word = "COMMIT"});
  proxy.arm({.cut = Cut::before_server, .word = "COMMIT"});

  SECTION("with one attempt the call gives the message back, and nothing is stored") {
    const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};
    const auto outcome = pay(Payment{"e-1"});
    CHECK(outcome.status == Status::deferred);
    CHECK(outcome.action == Action::redeliver);
    CHECK(outcome.attempts == 2);
    CHECK(outcome.failure.value().kind == ErrorClass::in_doubt);
    CHECK(ledger.count("e-1") == 0);
    CHECK(ledger.count_keys() == 0);
  }
  SECTION("with two the handler starts a third time") {
    const IdempotentConsumer pay{"pay.v1", store, ledger.book(), MaxAttempts{2}, without_pauses()};
    const auto outcome = pay(Payment{"e-1"});
    CHECK(outcome.status == Status::applied);
    CHECK(outcome.attempts == 3);
    CHECK(ledger.count("e-1") == 1);
  }
  SECTION("and it is never rejected, however often the message was delivered") {
    const IdempotentConsumer pay{"pay.v1", store, ledger.book(), Redeliver{Intervals{1min}},
                                 without_pauses()};
    const auto outcome = pay.process({.tenant = "acme", .id = "e-1", .delivery_count = 1000}, Payment{"e-1"});
    CHECK(outcome.status == Status::deferred);
    CHECK(outcome.redeliver_after == 1min);
  }
}

TEST_CASE("a COMMIT that is still running is waited for, not guessed at") {
  const Ledger ledger;
  SlowCommit commit{ledger};
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};
  proxy.arm({.cut = Cut::answer_unawaited, .word = "COMMIT"});

  std::thread helper{[&] {
    commit.await_commit();
    commit.await_resolver();
    commit.release();
  }};
  const auto outcome = pay(Payment{"e-1"});
  helper.join();

  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 1);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a COMMIT that outlives the search for its fate is in progress: neither acknowledged nor dead") {
  const Ledger ledger;
  SlowCommit commit{ledger};
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};
  proxy.arm({.cut = Cut::answer_unawaited, .word = "COMMIT"});

  const auto outcome = pay(Payment{"e-1"});
  CHECK(outcome.status == Status::in_progress);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.failure.value().code == code::in_doubt);
  CHECK(outcome.failure.value().kind == ErrorClass::in_doubt);
  CHECK_FALSE(outcome.resolved_in_doubt);
  CHECK(ledger.count("e-1") == 0);

  commit.release();
  CHECK(pay(Payment{"e-1"}).status == Status::duplicate);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a backend terminated while its COMMIT runs leaves a doubt, which is resolved") {
  const Ledger ledger;
  SlowCommit commit{ledger};
  PostgresStore store{server_dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};

  std::thread helper{[&] {
    commit.await_commit();
    commit.terminate_commit();
    commit.release();
  }};
  const auto outcome = pay(Payment{"e-1"});
  helper.join();

  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 2);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a handler slower than the server's idle time-out ends in a bounded number of starts") {
  const Ledger ledger;
  PostgresStore store{"options='-c idle_in_transaction_session_timeout=20ms'", ledger.options(1)};
  const auto slow = [&](postgres::Transaction& tx, const Payment& payment) {
    ledger.book()(tx, payment);
    const std::string pid = postgres::exec(tx, "SELECT pg_backend_pid()")[0][0].c_str();
    await_value("SELECT count(*) FROM pg_stat_activity WHERE pid = " + pid, "0");
  };
  const IdempotentConsumer pay{"pay.v1", store, slow, MaxAttempts{3}, without_pauses()};
  const auto outcome = pay(Payment{"e-1"});
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.attempts >= 3);
  CHECK(outcome.attempts <= 4);
  CHECK(ledger.count("e-1") == 0);
  CHECK(ledger.count_keys() == 0);
}

TEST_CASE(
    "two workers that resolve one event's doubt at once apply it once, and the other answers duplicate") {
  const Ledger ledger;
  // A proxy for each: a worker whose second COMMIT is lost as well gives its message back, and proves nothing here.
  FaultProxy proxy_a{server_socket_dir()};
  FaultProxy proxy_b{server_socket_dir()};
  // Two stores: the calls of one store would take turns before they reach the database.
  PostgresStore store_a{proxy_a.dsn(), ledger.options(1)};
  PostgresStore store_b{proxy_b.dsn(), ledger.options(1)};
  const IdempotentConsumer pay_a{"pay.v1", store_a, ledger.book(), without_pauses()};
  const IdempotentConsumer pay_b{"pay.v1", store_b, ledger.book(), without_pauses()};
  for (FaultProxy* proxy : {&proxy_a, &proxy_b}) proxy->arm({.cut = Cut::before_server, .word = "COMMIT"});

  std::array<std::optional<Outcome<>>, 2> outcomes;
  std::thread other{[&] { outcomes[1] = pay_b(Payment{"e-1"}); }};
  outcomes[0] = pay_a(Payment{"e-1"});
  other.join();

  int applied = 0;
  for (const auto& outcome : outcomes) {
    CHECK(outcome.value().action == Action::acknowledge);
    applied += outcome.value().status == Status::applied ? 1 : 0;
  }
  CHECK(applied == 1);
  CHECK(proxy_a.fired() + proxy_b.fired() >= 1);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a doubt whose event another worker applied meanwhile is a duplicate, or a mismatch") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  PostgresStore other_store{server_dsn(), ledger.options(1)};
  const IdempotentConsumer other{"pay.v1", other_store, ledger.book()};
  const std::int64_t cents = GENERATE(100, 999);
  std::atomic<int> lookups = 0;
  const auto runtime = Runtime{.sleeper = [&](auto, const std::stop_token&) {
    // The first look at the doubt is refused; before the second, the other worker is done.
    proxy.refuse_connections(Refuse::no);
    if (lookups++ == 0) CHECK(other(Payment{"e-1", cents}).status == Status::applied);
  }};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), runtime};
  const auto refuse_then_book = [&](postgres::Transaction& tx, const Payment& payment) {
    ledger.book()(tx, payment);
    proxy.refuse_connections(Refuse::yes);
  };
  const IdempotentConsumer doubtful{"pay.v1", store, refuse_then_book, runtime};

  proxy.arm({.cut = Cut::before_server, .word = "COMMIT"});
  const auto outcome = doubtful(Payment{"e-1", 100});
  CHECK(lookups >= 1);
  CHECK(outcome.status == (cents == 100 ? Status::duplicate : Status::mismatch));
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 1);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a store that stays away leaves the doubt open: in progress, never acknowledged or dead") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  auto now = std::chrono::steady_clock::now();
  const Runtime runtime{.clock = [&] { return now; },
                        .sleeper = [&](auto until, const std::stop_token&) { now = until; }};
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](postgres::Transaction& tx, const Payment& payment) {
                                 ledger.book()(tx, payment);
                                 proxy.refuse_connections(Refuse::yes);
                               },
                               runtime};
  const auto cut = GENERATE(Cut::before_server, Cut::answer);
  proxy.arm({.cut = cut, .word = "COMMIT"});
  const auto began = now;
  const auto outcome = pay(Payment{"e-1"});
  CHECK(outcome.status == Status::in_progress);
  CHECK(outcome.failure.value().code == code::in_doubt);
  CHECK(now - began >= 4s);
  CHECK(now - began <= 6s);

  proxy.refuse_connections(Refuse::no);
  const IdempotentConsumer later{"pay.v1", store, ledger.book()};
  CHECK(later(Payment{"e-1"}).status == (cut == Cut::answer ? Status::duplicate : Status::applied));
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a connection cut in the handler is replaced per policy, then given back, and never rejected") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const auto cut_once = [&](postgres::Transaction& tx, const Payment& payment) {
    proxy.arm({.cut = Cut::before_server, .word = "INSERT"});
    ledger.book()(tx, payment);
  };
  const IdempotentConsumer pay{"pay.v1",        store, cut_once, MaxAttempts{2}, Redeliver{Intervals{1min}},
                               without_pauses()};
  const auto outcome = pay.process({.tenant = "acme", .id = "e-1", .delivery_count = 50}, Payment{"e-1"});
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.attempts == 2);
  CHECK(outcome.failure.value().kind == ErrorClass::reconnect);
  CHECK_FALSE(outcome.resolved_in_doubt);
  CHECK(ledger.count_keys() == 0);
}

}  // namespace idem::tests::faults
