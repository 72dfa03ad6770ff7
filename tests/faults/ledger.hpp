// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "support/catch.hpp"
#include "support/fault_proxy.hpp"
#include "support/server.hpp"

namespace idem::tests::faults {

struct Payment {
  std::string id;
  std::int64_t cents = 100;
};

inline Event event_of(const Payment& payment) {
  return {
      .tenant = "acme", .id = payment.id, .fingerprint = fingerprint_of(payment.cents), .delivery_count = 1};
}

/// A schema of its own with the library's tables and one table of effects, which nothing keeps from growing
/// twice.
class Ledger {
 public:
  Ledger() {
    PostgresStore{server_dsn(), options()}.create_schema();
    execute("CREATE TABLE " + effects() + " (event text NOT NULL, cents bigint NOT NULL)");
  }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger() {
    try {
      drop_schema(schema_);
    } catch (const std::exception&) {  // the server may be what the test broke
    }
  }

  [[nodiscard]] PostgresOptions options(std::size_t connections = 8) const {
    return {.schema = schema_, .max_connections = connections};
  }
  [[nodiscard]] const std::string& schema() const noexcept { return schema_; }
  [[nodiscard]] std::string effects() const { return schema_ + ".effects"; }
  [[nodiscard]] std::string keys() const { return schema_ + ".keys"; }

  /// The handler under test: one statement.
  [[nodiscard]] auto book() const {
    return [sql = "INSERT INTO " + effects() + " VALUES ($1, $2)"](postgres::Transaction& tx,
                                                                   const Payment& payment) {
      postgres::require_rows(1, postgres::exec(tx, sql, payment.id, payment.cents));
    };
  }

  [[nodiscard]] int count(const std::string& id) const {
    return std::stoi(query_value("SELECT count(*) FROM " + effects() + " WHERE event = '" + id + "'"));
  }
  [[nodiscard]] int count_keys() const { return std::stoi(query_value("SELECT count(*) FROM " + keys())); }

 private:
  std::string schema_ = unique_schema("ledger");
};

/// Delivers an event three times; whatever happens on the way, a call that acknowledges it leaves its effect there
/// once, and one does.
template <class Consumer>
void deliver_until_applied(const Ledger& ledger, const Consumer& pay) {
  bool acknowledged = false;
  for (int delivery = 1; delivery <= 3; ++delivery) {
    const auto outcome = pay(Payment{"e-1"});
    CHECK(outcome.action != Action::dead_letter);
    acknowledged = outcome.action == Action::acknowledge;
    if (acknowledged) CHECK(ledger.count("e-1") == 1);
  }
  CHECK(acknowledged);
  CHECK(ledger.count("e-1") == 1);
  CHECK(ledger.count_keys() == 1);
}

}  // namespace idem::tests::faults
