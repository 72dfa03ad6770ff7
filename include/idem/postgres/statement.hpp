// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/exec.hpp>
#include <idem/postgres/transaction.hpp>

namespace idem::postgres {

/// One SQL statement with its parameters, said but not run: what a handler returns so that claim, effect and
/// COMMIT travel in one message.
///
/// The text is one statement with parameters `$1`, `$2`, …; keep it constant, for each connection prepares it
/// once (up to 64 different ones, more take the usual way). Parameters as for `exec`.
class Statement {
 public:
  /// Throws: PermanentError — a text parameter holds NUL.
  template <class... Args>
  explicit Statement(std::string_view sql, const Args&... args)
      : sql_{sql}, parameters_{detail::text_parameters(args...)} {}

  /// Demands that it affects exactly so many rows; else the message meets PreconditionFailed, as with
  /// `require_rows`. For INSERT, UPDATE and DELETE without RETURNING.
  [[nodiscard]] Statement affecting(std::size_t rows) && {
    rows_ = rows;
    return std::move(*this);
  }

  [[nodiscard]] const std::string& sql() const noexcept { return sql_; }
  /// In the server's text form; nullopt is NULL.
  [[nodiscard]] const std::vector<std::optional<std::string>>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] std::optional<std::size_t> rows() const noexcept { return rows_; }

 private:
  std::string sql_;
  std::vector<detail::TextParameter> parameters_;
  std::optional<std::size_t> rows_ = {};
};

/// The whole effect of a message, in order; empty: nothing is to be done, and the event counts as handled.
class Statements {
 public:
  Statements(Statement one) { all_.push_back(std::move(one)); }
  Statements(std::vector<Statement> all) : all_{std::move(all)} {}
  Statements(std::initializer_list<Statement> all) : all_{all} {}

  [[nodiscard]] auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] auto end() const noexcept { return all_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }

 private:
  std::vector<Statement> all_ = {};
};

/// Runs them one by one, for where they cannot travel with the claim.
inline void run_statements(Transaction& tx, const Statements& statements) {
  for (const Statement& statement : statements) {
    const pqxx::result rows = tx.run(statement.sql(), statement.parameters());
    if (statement.rows()) require_rows(*statement.rows(), rows);
  }
}

}  // namespace idem::postgres
