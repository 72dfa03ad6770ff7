// SPDX-License-Identifier: MIT
// A service with connections, transactions and a table of handled events of its own takes the library over, a step at
// a time. Its database is moved by migrate.sql, with the old code still at work; each step may be the last one.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

namespace shop {

const std::string name = "charge-order.v1";  // of the consumer: the same in the old table

struct OrderPaid {
  std::string tenant, event_id;  // as PostgreSQL prints a uuid
  int cents = 0;
};

void charge(pqxx::transaction_base& tx, const OrderPaid& m) {
  idem::postgres::exec(tx, "INSERT INTO charges (event_id, cents) VALUES ($1, $2)", m.event_id, m.cents);
}

idem::Event event_of(const OrderPaid& m) {
  return {.tenant = m.tenant, .id = m.event_id, .fingerprint = idem::fingerprint_of(m.cents)};
}

// Before: the row of the old table is what makes an event handled once.
bool handle_as_before(pqxx::connection& connection, const OrderPaid& m) {
  pqxx::work tx{connection};
  const auto mine = idem::postgres::exec(
      tx,
      "INSERT INTO processed_events (tenant_id, consumer, event_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
      m.tenant, name, m.event_id);
  if (mine.affected_rows() == 0) return true;
  charge(tx, m);
  tx.commit();
  return true;
}

// [claim]
// 1: only that statement is replaced. The connection, the transaction and what is retried stay the service's own.
bool handle_with_claim(pqxx::connection& connection, const OrderPaid& m) {
  pqxx::work tx{connection};
  switch (idem::postgres::claim(tx, {m.tenant, name, m.event_id}, event_of(m).fingerprint)) {
    case idem::postgres::Claimed::fresh: break;
    case idem::postgres::Claimed::duplicate: return true;
    case idem::postgres::Claimed::mismatch:
      return false;  // another message under this id: to the dead letters
  }
  charge(tx, m);
  tx.commit();
  return true;
}
// [claim]

// [factory]
// 2: the library opens and commits, on connections that are still made where they always were.
std::unique_ptr<pqxx::connection> connect() { return std::make_unique<pqxx::connection>(""); }

idem::PostgresStore& store() {
  static idem::PostgresStore one{connect};
  return one;
}
// [factory]

// [consumer]
// 3: the whole call: retries, doubtful commits, late redelivery, and what to tell the transport.
idem::Outcome<> handle(const OrderPaid& m) {
  using namespace std::chrono_literals;
  static const idem::IdempotentConsumer consumer{
      name, store(), [](idem::postgres::Transaction& tx, const OrderPaid& order) { charge(tx, order); },
      idem::ExponentialBackoff{100ms, 5s} | idem::FullJitter{} | idem::MaxAttempts{5}};
  return consumer(m);
}
// [consumer]

// What psql -f does with the script's first two steps: a procedure that commits wants a message of its own.
void migrate(pqxx::connection& connection) {
  std::ifstream file{std::filesystem::path{__FILE__}.replace_filename("migrate.sql")};
  const std::string script{std::istreambuf_iterator<char>{file}, {}};
  const auto call = script.find("CALL ");
  pqxx::nontransaction sql{connection};
  sql.exec(script.substr(0, call));
  sql.exec(script.substr(call, script.find('\n', call) - call));
}

}  // namespace shop

int main() {
  pqxx::connection connection{""};
  pqxx::nontransaction{connection}.exec(
      "CREATE TABLE processed_events (tenant_id uuid, consumer text, event_id uuid, "
      "PRIMARY KEY (tenant_id, consumer, event_id)); CREATE TABLE charges (event_id uuid, cents int)");
  const auto order = [](const std::string& last) {
    return shop::OrderPaid{"0a0b0c0d-0000-4000-8000-000000000001",
                           "0a0b0c0d-0000-4000-9000-00000000000" + last, 100};
  };
  bool done = shop::handle_as_before(connection, order("1"));

  shop::store().create_schema();
  shop::migrate(connection);
  // Whoever is first, old code or new: every event is charged once, those of before the migration too.
  done = done && shop::handle_with_claim(connection, order("1")) &&
         shop::handle_with_claim(connection, order("2")) && shop::handle_as_before(connection, order("2")) &&
         shop::handle_as_before(connection, order("3")) &&
         shop::handle(order("3")).status == idem::Status::duplicate &&
         shop::handle(order("4")).status == idem::Status::applied &&
         shop::handle_as_before(connection, order("4"));

  pqxx::nontransaction sql{connection};
  const pqxx::result found = sql.exec("SELECT count(*), count(DISTINCT event_id) FROM charges");
  std::cout << found[0][0].c_str() << " charges for " << found[0][1].c_str() << " of 4 events\n";
  return done && found[0][0].as<int>() == 4 && found[0][1].as<int>() == 4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
