// SPDX-License-Identifier: MIT
#pragma once

// The example's own tables, and the truth read from them. Each consumer has a schema of its own.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>
#include <pqxx/pqxx>

#include <idem/postgres/exec.hpp>

namespace webhook_ledger {

/// `where`: the host part of a connection string, empty for what PGHOST and the like say.
[[nodiscard]] inline std::string dsn_for(std::string_view where, std::string_view schema,
                                         std::string_view program) {
  return fmt::format(
      "{} application_name={} client_encoding=UTF8 options='-c search_path={} -c statement_timeout=20s "
      "-c client_min_messages=warning'",
      where, program, schema);
}

/// What the tables say at the end.
struct Truth {
  std::size_t events = 0;                       ///< distinct, those in dead letters excluded
  std::size_t effects = 0;                      ///< rows in the ledger
  std::size_t lost = 0;                         ///< events without a row
  std::size_t doubled = 0;                      ///< rows too many
  std::size_t totals_low = 0, totals_high = 0;  ///< the same, as the running totals see it
  [[nodiscard]] bool exactly_once() const { return lost + doubled + totals_low + totals_high == 0; }
};

/// The parent's own connection, past every fault.
class Tables {
 public:
  Tables(const std::string& schema, const std::string& worker_name)
      : schema_{schema}, worker_name_{worker_name}, connection_{dsn_for("", schema, "webhook_ledger")} {
    pqxx::nontransaction tx{connection_};
    // Held until the connection closes: two runs at once would drop each other's tables.
    const auto lock = tx.exec("SELECT pg_try_advisory_lock(hashtext('" + schema_ + "'))");
    if (!lock[0][0].as<bool>())
      throw std::runtime_error{"another webhook_ledger is running in this database; wait for its end"};
  }

  /// Drops what an earlier run has left, and begins anew.
  void create() {
    pqxx::work tx{connection_};
    tx.exec("DROP SCHEMA IF EXISTS " + schema_ + " CASCADE");
    tx.exec("CREATE SCHEMA " + schema_);
    tx.exec(R"(
      CREATE TABLE ledger (  -- no unique key here: a doubled effect is to be seen
        entry        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        hook_id      text NOT NULL,
        delivery_id  text NOT NULL,
        event        text NOT NULL,
        body         text NOT NULL,
        entered_at   timestamptz NOT NULL DEFAULT clock_timestamp()
      );
      CREATE TABLE total (
        hook_id text, event text, deliveries bigint NOT NULL DEFAULT 0, bytes bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (hook_id, event)
      );
      CREATE TABLE processed (id text PRIMARY KEY);  -- used by the naive consumers
      CREATE TABLE expected (hook_id text, delivery_id text, event text NOT NULL, PRIMARY KEY (hook_id, delivery_id));
      CREATE TABLE dead_letter (hook_id text, delivery_id text, reason text NOT NULL);)");
    tx.commit();
  }

  /// Says which events will come, and opens their running totals.
  template <class Deliveries>
  void expect(const Deliveries& deliveries) {
    using idem::postgres::exec;
    pqxx::work tx{connection_};
    for (const auto& d : deliveries) {
      exec(tx, "INSERT INTO expected VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", d.hook_id, d.delivery_id,
           d.event);
      exec(tx, "INSERT INTO total VALUES ($1, $2) ON CONFLICT DO NOTHING", d.hook_id, d.event);
    }
    tx.commit();
  }

  void dead_letter(const std::string& hook_id, const std::string& delivery_id, std::string_view reason) {
    pqxx::work tx{connection_};
    idem::postgres::exec(tx, "INSERT INTO dead_letter VALUES ($1, $2, $3)", hook_id, delivery_id, reason);
    tx.commit();
  }

  /// Ends the server side of one of our workers' connections, busy ones first; whether there was one.
  bool terminate_a_backend() {
    pqxx::nontransaction tx{connection_};
    const auto rows = idem::postgres::exec(tx, R"(
      SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE application_name = $1 AND datname = current_database()
      ORDER BY state = 'idle', random() LIMIT 1)",
                                           worker_name_);
    return !rows.empty() && rows[0][0].as<bool>();
  }

  [[nodiscard]] Truth truth() {
    pqxx::nontransaction tx{connection_};
    const auto rows = tx.exec(R"(
      WITH due AS (
        SELECT e.hook_id, e.delivery_id, e.event, count(l.entry) AS rows
        FROM expected e LEFT JOIN ledger l USING (hook_id, delivery_id)
        GROUP BY 1, 2, 3
        HAVING count(l.entry) > 0 OR NOT EXISTS (
          SELECT FROM dead_letter d WHERE d.hook_id = e.hook_id AND d.delivery_id = e.delivery_id)
      ), sums AS (
        SELECT hook_id, event, t.deliveries - coalesce(d.due, 0) AS excess
        FROM total t LEFT JOIN (SELECT hook_id, event, count(*) AS due FROM due GROUP BY 1, 2) d USING (hook_id, event)
      )
      SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM ledger),
             (SELECT count(*) FROM due WHERE rows = 0),
             (SELECT coalesce(sum(rows - 1), 0) FROM due WHERE rows > 1),
             (SELECT coalesce(sum(-excess), 0) FROM sums WHERE excess < 0),
             (SELECT coalesce(sum(excess), 0) FROM sums WHERE excess > 0))");
    const auto number = [&](int column) {
      return static_cast<std::size_t>(std::stoull(rows[0][column].c_str()));
    };
    return {number(0), number(1), number(2), number(3), number(4), number(5)};
  }

 private:
  std::string schema_;
  std::string worker_name_;
  pqxx::connection connection_;
};

}  // namespace webhook_ledger
