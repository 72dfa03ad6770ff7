// SPDX-License-Identifier: MIT
// A handler that commits by itself, where the library could take its own row for somebody else's.
#include <sys/wait.h>
#include <unistd.h>

#include "faults/ledger.hpp"
#include "support/catch.hpp"

namespace idem::tests::faults {

namespace {

std::string told(const Outcome<>& outcome) {
  return std::string{to_string(outcome.status)} + (outcome.failure ? " " + outcome.failure->code : "");
}

}  // namespace

TEST_CASE("one handler's own COMMIT in a batch acknowledges none of the messages whose keys it committed") {
  const auto ending = GENERATE(values<std::string>({"returns", "throws", "throws later"}));
  CAPTURE(ending);
  const Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(2)};
  const IdempotentConsumer pay{"pay.v1", store, [&](postgres::Transaction& tx, const Payment& payment) {
                                 ledger.book()(tx, payment);
                                 if (payment.id != "b") return;
                                 tx.exec("COMMIT");
                                 if (ending == "throws") throw PermanentError{"no"};
                                 tx.exec("BEGIN");
                                 if (ending == "throws later") throw TransientError{"later"};
                               }};
  const auto report = pay.process_batch(std::vector<Payment>{{"a"}, {"b"}, {"c"}, {"d"}});
  for (const auto& outcome : report.outcomes) CHECK(told(outcome) == "rejected transaction_ended_by_handler");
  CHECK(ledger.count("a") == 1);  // by the handler's own COMMIT
  CHECK(ledger.count("d") == 0);
}

TEST_CASE("a retry that finds the row of its own earlier attempt knows that the handler committed it") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const auto how = GENERATE(values<std::string>({"connection lost", "statements dropped"}));
  CAPTURE(how);
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](postgres::Transaction& tx, const Payment& payment) {
                                 tx.exec("COMMIT");
                                 if (how == "statements dropped") tx.exec("DEALLOCATE ALL");
                                 tx.exec("BEGIN");
                                 if (how == "connection lost")
                                   proxy.arm({.cut = Cut::before_server, .word = "INSERT"});
                                 ledger.book()(tx, payment);
                               },
                               MaxAttempts{2}, Runtime{.sleeper = [](auto, const std::stop_token&) {}}};
  const auto outcome = pay(Payment{"e-1"});
  CHECK(told(outcome) == "rejected transaction_ended_by_handler");
  CHECK(outcome.attempts == 1);
}

TEST_CASE("a forked process opens connections of its own, and leaves those of its parent alone") {
  const Ledger ledger;
  PostgresStore store{server_dsn(), ledger.options(2)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book()};
  REQUIRE(pay(Payment{"before"}).status == Status::applied);
  const pid_t child = ::fork();
  if (child == 0) {
    bool applied = true;
    for (int i = 0; i < 20; ++i)
      applied = applied && pay(Payment{"child-" + std::to_string(i)}).status == Status::applied;
    ::_exit(applied ? 0 : 1);
  }
  for (int i = 0; i < 20; ++i) CHECK(pay(Payment{"parent-" + std::to_string(i)}).status == Status::applied);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(pay(Payment{"after"}).status == Status::applied);
  CHECK(query_value("SELECT count(*) FROM " + ledger.effects()) == "42");
  CHECK(ledger.count_keys() == 42);
}

}  // namespace idem::tests::faults
