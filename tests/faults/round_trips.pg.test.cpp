// SPDX-License-Identifier: MIT
#include "faults/ledger.hpp"

#include "support/catch.hpp"

namespace idem::tests::faults {

namespace {

template <class Work>
std::size_t round_trips_of(FaultProxy& proxy, Work work) {
  proxy.reset_counts();
  work();
  return proxy.round_trips();
}

/// The first message opens the connection and names our statements, the second one prepares the handler's.
template <class Consumer>
void warm_up(const Consumer& pay) {
  REQUIRE(pay(Payment{"warm-up-1"}).status == Status::applied);
  REQUIRE(pay(Payment{"warm-up-2"}).status == Status::applied);
}

}  // namespace

TEST_CASE("a one-statement handler costs three round trips, as many as in a plain transaction") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book()};
  warm_up(pay);

  const auto ours = round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1"}).status == Status::applied); });

  pqxx::connection connection{proxy.dsn()};
  const auto plain = round_trips_of(proxy, [&] {
    pqxx::work tx{connection};
    postgres::exec(tx, "INSERT INTO " + ledger.effects() + " VALUES ($1, $2)", "e-2", 100);
    tx.commit();
  });
  CHECK(ours == 3);
  CHECK(plain == 3);
}

TEST_CASE("a stored result costs no round trip") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, [&](postgres::Transaction& tx, const Payment& payment) {
                                 ledger.book()(tx, payment);
                                 return payment.cents;
                               }};
  warm_up(pay);
  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1"}).value == 100); }) == 3);
}

TEST_CASE("a duplicate costs two round trips, a mismatch as well") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book()};
  REQUIRE(pay(Payment{"e-1"}).status == Status::applied);

  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1"}).status == Status::duplicate); }) == 2);
  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1", 7}).status == Status::mismatch); }) == 2);
}

TEST_CASE(
    "a redelivered duplicate costs one round trip, a redelivered event that is new one more than another") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book()};
  warm_up(pay);
  const auto again = [](const std::string& id) {
    return Event{.tenant = "acme", .id = id, .fingerprint = fingerprint_of(100), .delivery_count = 2};
  };

  CHECK(round_trips_of(proxy, [&] {
          REQUIRE(pay.process(again("warm-up-1"), Payment{"warm-up-1"}).status == Status::duplicate);
        }) == 1);
  CHECK(round_trips_of(proxy, [&] {
          REQUIRE(pay.process(again("e-1"), Payment{"e-1"}).status == Status::applied);
        }) == 4);
}

TEST_CASE("a redelivered event whose effect is leased costs one round trip") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer send{"send.v1", store,
                                [](Lease&, const Payment&) { return std::string{"receipt"}; }};
  REQUIRE(send(Payment{"e-1"}).status == Status::applied);
  const Event again{.tenant = "acme", .id = "e-1", .fingerprint = fingerprint_of(100), .delivery_count = 2};
  CHECK(round_trips_of(proxy, [&] {
          const auto outcome = send.process(again, Payment{"e-1"});
          REQUIRE(outcome.status == Status::duplicate);
          REQUIRE(outcome.value == "receipt");
        }) == 1);
}

TEST_CASE("a handler that says its statement costs one round trip, a duplicate of it two") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, [&](const Payment& payment) {
                                 return postgres::Statement{
                                     "INSERT INTO " + ledger.effects() + " VALUES ($1, $2)", payment.id,
                                     payment.cents}
                                     .affecting(1);
                               }};
  warm_up(pay);
  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1"}).status == Status::applied); }) == 1);
  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1"}).status == Status::duplicate); }) == 2);
  CHECK(round_trips_of(proxy, [&] { REQUIRE(pay(Payment{"e-1", 7}).status == Status::mismatch); }) == 2);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a retry on a live connection adds no more than its own three round trips") {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  enum class Fails { by_exception, by_sql_error };
  for (const Fails how : {Fails::by_exception, Fails::by_sql_error}) {
    int starts = 0;
    const auto fails_once = [&](postgres::Transaction& tx, const Payment& payment) {
      if (++starts == 1 && how == Fails::by_sql_error) {
        postgres::exec(tx, "SELECT pg_catalog.set_config('lock_timeout', 'nonsense', true)");
      }
      ledger.book()(tx, payment);
      if (starts == 1) throw TransientError{"the bank is down"};
    };
    const PostgresOptions lenient{
        .schema = ledger.schema(), .max_connections = 1, .reclassify = {{"22023", ErrorClass::transient}}};
    PostgresStore tolerant{proxy.dsn(), lenient};
    const IdempotentConsumer pay{"retry.v1", tolerant, fails_once, MaxAttempts{2}};
    const std::string id = how == Fails::by_exception ? "by-exception" : "by-sql-error";
    starts = 1;
    REQUIRE(pay(Payment{"warm-up-1-" + id}).status == Status::applied);
    REQUIRE(pay(Payment{"warm-up-2-" + id}).status == Status::applied);
    starts = 0;
    const auto trips = round_trips_of(proxy, [&] {
      const auto outcome = pay(Payment{id});
      REQUIRE(outcome.status == Status::applied);
      REQUIRE(outcome.attempts == 2);
    });
    CHECK(trips == 6);
  }
}

}  // namespace idem::tests::faults
