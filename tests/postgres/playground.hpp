// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "support/server.hpp"

namespace idem::tests {

/// A message: what it says is its text.
struct Note {
  std::string id;
  std::string text = {};
  std::string tenant = {};
  std::int64_t delivery_count = 1;
};

[[nodiscard]] inline Event event_of(const Note& note) {
  return {.tenant = note.tenant,
          .id = note.id,
          .fingerprint = fingerprint_of(note.text),
          .delivery_count = note.delivery_count};
}

/// Asks again and again, a round trip at a time, until `condition` holds.
///
/// Throws: std::runtime_error after 30 s, so that a test fails and does not hang.
inline void await(const std::string& what, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error{"waited in vain for: " + what};
    std::this_thread::yield();
  }
}

/// Waits until a backend of the server waits for a lock of a transaction that `pid` has open.
inline void await_waiter_behind(int pid) {
  await("a session that waits behind another", [pid] {
    return query_value("SELECT count(*) FROM pg_stat_activity WHERE " + std::to_string(pid) +
                       " = ANY(pg_blocking_pids(pid))") != "0";
  });
}

[[nodiscard]] inline int pid_of(pqxx::transaction_base& tx) {
  return tx.exec(std::string{"SELECT pg_backend_pid()"})[0][0].as<int>();
}

/// Ends a session as an administrator does, and waits until it is gone.
inline void terminate(int pid) {
  execute("SELECT pg_terminate_backend(" + std::to_string(pid) + ")");
  await("the end of a session", [pid] {
    return query_value("SELECT count(*) FROM pg_stat_activity WHERE pid = " + std::to_string(pid)) == "0";
  });
}

/// A schema of its own with a table `effects (id, note)`, dropped in the end.
class Playground {
 public:
  explicit Playground(const std::string& prefix, std::string dsn = server_dsn())
      : dsn_{std::move(dsn)}, schema_{unique_schema(prefix)} {
    execute("CREATE SCHEMA " + schema_ + "; CREATE TABLE " + effects() + " (id text, note text)", dsn_);
  }
  Playground(const Playground&) = delete;
  Playground& operator=(const Playground&) = delete;
  ~Playground() {
    try {
      execute("DROP SCHEMA IF EXISTS " + schema_ + " CASCADE", dsn_);
    } catch (const std::exception&) {  // the server is private: what is left goes with it
    }
  }

  [[nodiscard]] const std::string& schema() const noexcept { return schema_; }
  [[nodiscard]] std::string effects() const { return schema_ + ".effects"; }
  [[nodiscard]] std::string keys() const { return schema_ + ".keys"; }
  [[nodiscard]] std::string value(const std::string& sql) const { return query_value(sql, dsn_); }
  [[nodiscard]] std::string count(const std::string& table) const {
    return value("SELECT count(*) FROM " + schema_ + "." + table);
  }
  /// The ids in `effects`, in order.
  [[nodiscard]] std::string effect_ids() const {
    return value("SELECT coalesce(string_agg(id, ',' ORDER BY id), '') FROM " + effects());
  }

  [[nodiscard]] PostgresOptions options() const { return {.schema = schema_}; }

  /// Writes the effect of a note.
  void write(pqxx::transaction_base& tx, const std::string& id) const {
    postgres::exec(tx, "INSERT INTO " + effects() + " (id) VALUES ($1)", id);
  }

 private:
  std::string dsn_;
  std::string schema_;
};

/// A role of its own, dropped in the end with what it owns.
class Role {
 public:
  /// `attributes`: as in CREATE ROLE.
  explicit Role(const std::string& attributes = "LOGIN") : name_{unique_schema("idem_role")} {
    execute("CREATE ROLE " + name_ + " " + attributes);
  }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;
  ~Role() {
    try {
      execute("DROP OWNED BY " + name_ + " CASCADE; DROP ROLE " + name_);
    } catch (const std::exception&) {
    }
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::string dsn() const { return "user=" + name_; }
  const Role& set(const std::string& setting) const {
    execute("ALTER ROLE " + name_ + " SET " + setting);
    return *this;
  }
  /// What a worker needs, as the library says it.
  const Role& may_work_in(const Playground& playground) const {
    execute("GRANT USAGE ON SCHEMA " + playground.schema() + " TO " + name_ +
            "; GRANT SELECT, INSERT, UPDATE ON " + "ALL TABLES IN SCHEMA " + playground.schema() + " TO " +
            name_);
    return *this;
  }

 private:
  std::string name_;
};

/// A database of its own, dropped in the end.
class Database {
 public:
  explicit Database(const std::string& attributes = "") : name_{unique_schema("idem_db")} {
    execute("CREATE DATABASE " + name_ + " " + attributes);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() {
    try {
      execute("DROP DATABASE " + name_ + " WITH (FORCE)");
    } catch (const std::exception&) {
    }
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::string dsn() const { return "dbname=" + name_; }

 private:
  std::string name_;
};

[[nodiscard]] inline auto up_to(std::uint32_t attempts) { return Immediate{} | MaxAttempts{attempts}; }

/// Whether the outcome says that the event is done.
template <class R>
[[nodiscard]] std::string told(const Outcome<R>& outcome) {
  std::string text{to_string(outcome.status)};
  if (outcome.failure && !outcome.failure->code.empty()) text += ' ' + outcome.failure->code;
  return text;
}

/// What a ConfigurationError says; empty when none is thrown.
template <class Work>
[[nodiscard]] std::string refusal(Work work) {
  try {
    static_cast<void>(work());
  } catch (const ConfigurationError& e) {
    return e.what();
  }
  return {};
}

}  // namespace idem::tests
