// SPDX-License-Identifier: MIT
#include <thread>

#include "faults/ledger.hpp"
#include "faults/slow_commit.hpp"
#include "support/postgres_server.hpp"

#include "support/catch.hpp"

namespace idem::tests::faults {

namespace {

Runtime without_pauses() {
  return {.sleeper = [](auto, const std::stop_token&) {}};
}

}  // namespace

TEST_CASE("a server that crashes during COMMIT and comes back leaves the effect there once") {
  const Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};
  {
    const IdempotentConsumer doomed{"pay.v1", store, ledger.book()};
    SlowCommit commit{ledger};
    std::thread crash{[&] {
      commit.await_commit();
      crash_and_restart_server();
    }};
    const auto outcome = doomed(Payment{"e-1"});
    crash.join();
    // Resolved on the restarted server, or given back: never acknowledged without the effect.
    CHECK(outcome.action != Action::dead_letter);
    if (outcome.status == Status::applied) CHECK(ledger.count("e-1") == 1);
    if (outcome.action == Action::redeliver) CHECK(ledger.count("e-1") == 0);
  }
  const auto again = pay(Payment{"e-1"});
  CHECK(again.action == Action::acknowledge);
  CHECK(ledger.count("e-1") == 1);
  CHECK(ledger.count_keys() == 1);
}

TEST_CASE("a committed effect survives a crash of the server whose answer was lost") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  bool crashed = false;
  const Runtime crash_at_first_pause{.sleeper = [&](auto, const std::stop_token&) {
    if (std::exchange(crashed, true)) return;
    crash_and_restart_server();
    proxy.refuse_connections(Refuse::no);
  }};
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](postgres::Transaction& tx, const Payment& payment) {
                                 ledger.book()(tx, payment);
                                 if (!crashed) proxy.refuse_connections(Refuse::yes);
                               },
                               crash_at_first_pause};
  const auto [cut, starts] = GENERATE(table<Cut, unsigned>({{Cut::answer, 1}, {Cut::before_server, 2}}));
  proxy.arm({.cut = cut, .word = "COMMIT"});
  const auto outcome = pay(Payment{"e-1"});
  CHECK(crashed);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == starts);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("connections that a restart killed in the pool are replaced without an attempt being counted") {
  const Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(4)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book()};
  CHECK(pay(Payment{"e-1"}).status == Status::applied);
  restart_server();
  const auto outcome = pay(Payment{"e-2"});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.attempts == 1);
}

}  // namespace idem::tests::faults
