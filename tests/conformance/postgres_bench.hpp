// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <pqxx/pqxx>

#include <idem/postgres/exec.hpp>
#include <idem/postgres/store.hpp>

#include "support/server.hpp"

namespace idem::tests {

struct PostgresBench {
  using Store = PostgresStore;
  static constexpr bool runs_at_once = true;

  explicit PostgresBench(Isolation isolation = Isolation::read_committed)
      : store{dsn(), {.schema = schema, .max_connections = 4, .isolation = isolation}},
        rival_{dsn(), {.schema = schema, .max_connections = 4, .isolation = isolation}} {
    store.create_schema();
    execute("CREATE TABLE " + schema + ".effects (amount bigint NOT NULL)");
  }
  PostgresBench(const PostgresBench&) = delete;
  PostgresBench& operator=(const PostgresBench&) = delete;
  ~PostgresBench() {
    try {
      drop_schema(schema);
    } catch (const std::exception&) {  // its name is never used again
    }
  }

  const std::string schema = unique_schema("consumer");
  Store store;

  [[nodiscard]] Store& rival() noexcept { return rival_; }

  void write(pqxx::transaction_base& tx, std::int64_t n) const {
    postgres::exec(tx, "INSERT INTO " + schema + ".effects VALUES ($1)", n);
  }
  [[nodiscard]] std::int64_t seen(pqxx::transaction_base& tx) const {
    return postgres::exec(tx, sum_sql())[0][0].as<std::int64_t>();
  }
  [[nodiscard]] std::int64_t sum() const { return std::stoll(query_value(sum_sql())); }
  [[nodiscard]] std::size_t keys() const {
    return std::stoul(query_value("SELECT count(*) FROM " + schema + ".keys"));
  }

  /// Seen in the server when the event is held through the rival store; waits for the own store's are inside it.
  void until_waited_for(const Store& held_through) const {
    if (&held_through == &store) return;
    pqxx::connection connection{server_dsn()};
    pqxx::nontransaction session{connection};
    const std::string waits =
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = '" + schema +
        "'";
    for (int looks = 0; looks < 20'000; ++looks)
      if (!session.exec(waits).empty()) return;
    throw std::runtime_error{"no call came to wait for the event"};
  }

 private:
  [[nodiscard]] std::string dsn() const { return "application_name=" + schema; }
  [[nodiscard]] std::string sum_sql() const {
    return "SELECT coalesce(sum(amount), 0) FROM " + schema + ".effects";
  }

  Store rival_;
};

}  // namespace idem::tests
