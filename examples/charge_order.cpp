// SPDX-License-Identifier: MIT
// The program of README's first page: charge an order once, however often the message comes.

#include <cstdlib>
#include <iostream>

// [charge_order]
#include <idem/idem.hpp>
#include <idem/postgres.hpp>

using namespace std::chrono_literals;

struct OrderPaid {
  std::string tenant, event_id, order_id;
  std::int64_t amount_cents;
};

// What identifies this message, and what it says.
idem::Event event_of(const OrderPaid& m) {
  return {
      .tenant = m.tenant, .id = m.event_id, .fingerprint = idem::fingerprint_of(m.order_id, m.amount_cents)};
}

void charge_order(idem::postgres::Transaction& tx, const OrderPaid& m) {
  idem::postgres::require_rows(
      1, idem::postgres::exec(tx, "UPDATE orders SET paid_cents = paid_cents + $1 WHERE id = $2",
                              m.amount_cents, m.order_id));
}

idem::Action handle(idem::PostgresStore& store, const OrderPaid& message) {
  const idem::IdempotentConsumer charge{
      "charge-order.v1", store, charge_order,
      idem::ExponentialBackoff{100ms, 5s} | idem::FullJitter{} | idem::MaxAttempts{5}};
  return charge(message).action;  // acknowledge, redeliver or dead_letter: see the table below
}
// [charge_order]

// [one_message]
idem::Action handle_in_one_message(idem::PostgresStore& store, const OrderPaid& message) {
  const idem::IdempotentConsumer charge{
      "charge-order.v1", store, [](const OrderPaid& m) {
        return idem::postgres::Statement{"UPDATE orders SET paid_cents = paid_cents + $1 WHERE id = $2",
                                         m.amount_cents, m.order_id}
            .affecting(1);  // several: return idem::postgres::Statements{a, b}
      }};
  return charge(message).action;
}
// [one_message]

int main() {
  {
    pqxx::connection shop{""};
    pqxx::nontransaction sql{shop};
    sql.exec("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, paid_cents bigint NOT NULL)");
    sql.exec("INSERT INTO orders VALUES ('o-1', 0) ON CONFLICT (id) DO UPDATE SET paid_cents = 0");
  }
  idem::PostgresStore store{""};
  store.create_schema();
  store.check();

  const std::string fresh_id = std::to_string(std::random_device{}());
  for (int delivery = 1; delivery <= 3; ++delivery)
    if (handle(store, {"acme", fresh_id, "o-1", 1250}) != idem::Action::acknowledge) return EXIT_FAILURE;
  for (int delivery = 1; delivery <= 2; ++delivery)
    if (handle_in_one_message(store, {"acme", fresh_id + "-b", "o-1", 50}) != idem::Action::acknowledge)
      return EXIT_FAILURE;

  pqxx::connection shop{""};
  pqxx::nontransaction sql{shop};
  const auto paid = sql.exec("SELECT paid_cents FROM orders WHERE id = 'o-1'")[0][0].as<std::int64_t>();
  std::cout << "two orders, five deliveries, charged " << paid << " cents\n";
  return paid == 1300 ? EXIT_SUCCESS : EXIT_FAILURE;
}
