// SPDX-License-Identifier: MIT
#include <string>

#include "faults/ledger.hpp"

#include "support/catch.hpp"

namespace idem::tests::faults {

namespace {

/// Looks again at once where the library would pause.
Runtime at_once() {
  return {.sleeper = [](auto, const std::stop_token&) {}};
}

auto said(const Ledger& ledger) {
  return [sql = "INSERT INTO " + ledger.effects() + " VALUES ($1, $2)"](const Payment& payment) {
    return postgres::Statement{sql, payment.id, payment.cents}.affecting(1);
  };
}

}  // namespace

TEST_CASE("a message that does everything, and whose answer is lost, has its effect once") {
  const auto cut =
      GENERATE(Cut::before_server, Cut::inside, Cut::answer_unawaited, Cut::answer, Cut::inside_answer);
  CAPTURE(name_of(cut));
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, said(ledger), at_once()};
  REQUIRE(pay(Payment{"warm-up"}).status == Status::applied);

  proxy.arm({.cut = cut, .word = "COMMIT", .bytes = 20});
  const auto outcome = pay(Payment{"e-1"});

  CHECK(proxy.fired() == 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(ledger.count("e-1") == 1);
  CHECK(pay(Payment{"e-1"}).status == Status::duplicate);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a message that does everything and whose answer is lost is told from another's") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  PostgresStore other_store{server_dsn(), ledger.options(1)};
  const IdempotentConsumer other{"pay.v1", other_store, said(ledger)};
  const std::int64_t cents = GENERATE(100, 999);
  int looks = 0;
  const Runtime runtime{.sleeper = [&](auto, const std::stop_token&) {
    // The first look at the doubt is refused; before the second, the other worker is done.
    proxy.refuse_connections(Refuse::no);
    if (looks++ == 0) CHECK(other(Payment{"e-1", cents}).status == Status::applied);
  }};
  bool last_one = false;
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](const Payment& payment) {
                                 if (last_one) proxy.refuse_connections(Refuse::yes);
                                 return said(ledger)(payment);
                               },
                               runtime};
  REQUIRE(pay(Payment{"warm-up"}).status == Status::applied);
  last_one = true;
  proxy.arm({.cut = Cut::before_server, .word = "COMMIT"});
  const auto outcome = pay(Payment{"e-1", 100});
  CHECK(looks >= 1);
  CHECK(outcome.status == (cents == 100 ? Status::duplicate : Status::mismatch));
  CHECK(outcome.resolved_in_doubt);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE(
    "whatever exchange of a handler that says its effect is cut, the effect is there once when the call says so") {
  const auto cut =
      GENERATE(Cut::before_server, Cut::inside, Cut::answer_unawaited, Cut::answer, Cut::inside_answer);
  const auto nth = GENERATE(range(std::size_t{1}, std::size_t{8}));
  CAPTURE(name_of(cut), nth);
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, said(ledger), MaxAttempts{2}, at_once()};

  proxy.arm({.cut = cut, .nth = nth, .bytes = 9});
  deliver_until_applied(ledger, pay);
}

TEST_CASE("a redelivered event whose first COMMIT is in doubt is not answered from a look") {
  // The look comes before the claim of the call; once a COMMIT is in doubt only a claim may decide.
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), at_once()};
  const Event event{.tenant = "acme", .id = "e-1", .fingerprint = fingerprint_of(100), .delivery_count = 2};
  proxy.arm({.cut = Cut::answer, .word = "COMMIT"});
  const auto outcome = pay.process(event, Payment{"e-1"});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(ledger.count("e-1") == 1);
}

}  // namespace idem::tests::faults
