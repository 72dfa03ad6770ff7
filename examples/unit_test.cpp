// SPDX-License-Identifier: MIT
// One handler: unit-tested on a store in memory, run on PostgreSQL.

#include <cstdlib>
#include <iostream>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

// [unit_test]
struct Deposit {
  std::string id, account;
  std::int64_t cents;
};

idem::Event event_of(const Deposit& m) {
  return {.id = m.id, .fingerprint = idem::fingerprint_of(m.account, m.cents)};
}

// What the handler needs of a transaction, said twice in one line each …
struct Accounts {
  std::map<std::string, std::int64_t> cents;
};
using InMemory = idem::MemoryStore<Accounts>;
void add(InMemory::Transaction& tx, const std::string& account, std::int64_t cents) {
  tx.state().cents[account] += cents;
}
void add(idem::postgres::Transaction& tx, const std::string& account, std::int64_t cents) {
  idem::postgres::exec(tx,
                       "INSERT INTO balance VALUES ($1, $2) ON CONFLICT (account) "
                       "DO UPDATE SET cents = balance.cents + excluded.cents",
                       account, cents);
}

// … and the handler once, for both.
inline constexpr auto deposit = [](auto& tx, const Deposit& m) {
  if (m.cents <= 0) throw idem::PermanentError{"a deposit is above zero"};
  add(tx, m.account, m.cents);
};

bool a_deposit_counts_once_and_a_bad_one_not_at_all() {
  InMemory store;
  const idem::IdempotentConsumer consumer{"deposit.v1", store, deposit};
  const bool applied = consumer(Deposit{"d-1", "alice", 500}).status == idem::Status::applied;
  const bool duplicate = consumer(Deposit{"d-1", "alice", 500}).status == idem::Status::duplicate;
  const bool mismatch = consumer(Deposit{"d-1", "alice", 999}).status == idem::Status::mismatch;
  const bool rejected = consumer(Deposit{"d-2", "alice", -1}).status == idem::Status::rejected;
  return applied && duplicate && mismatch && rejected && store.state().cents["alice"] == 500;
}
// [unit_test]

// [class_member]
inline auto make_consumer(idem::PostgresStore& store) {
  return idem::IdempotentConsumer{"deposit.v1", store, deposit};
}

class Service {
 public:
  explicit Service(const std::string& dsn) : store_{dsn}, consumer_{make_consumer(store_)} {
    store_.create_schema();
  }
  idem::Action on_message(const Deposit& message) { return consumer_(message).action; }

 private:
  idem::PostgresStore store_;  // before the consumer, which refers to it
  decltype(make_consumer(std::declval<idem::PostgresStore&>())) consumer_;
};
// [class_member]

int main() {
  if (!a_deposit_counts_once_and_a_bad_one_not_at_all()) return EXIT_FAILURE;
  {
    pqxx::connection bank{""};
    pqxx::nontransaction{bank}.exec(
        "CREATE TABLE IF NOT EXISTS balance (account text PRIMARY KEY, cents bigint NOT NULL)");
  }
  Service service{""};
  const Deposit message{std::to_string(std::random_device{}()), "bob", 700};
  for (int delivery = 1; delivery <= 2; ++delivery)
    if (service.on_message(message) != idem::Action::acknowledge) return EXIT_FAILURE;
  std::cout << "tested in memory, run on PostgreSQL\n";
}
