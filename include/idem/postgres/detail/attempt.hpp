// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/detail/function_ref.hpp>
#include <idem/detail/handler_failure.hpp>
#include <idem/fingerprint.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/session.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/postgres/transaction.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// A row that holds a key.
struct Row {
  Found found;
  bool free = false;                 ///< its window, or its lease, has ended
  std::optional<Leased> lease = {};  ///< it is not committed, only leased
};

/// The first six columns of what `Statements::find` selects; nullopt where there is no row.
[[nodiscard]] std::optional<Row> row_of(const auto& fields) {
  if (fields[0].is_null()) return std::nullopt;
  Row row{.found = {.token = token_of(fields[0].c_str())},
          .free = std::string_view{fields[3].c_str()} == "t"};
  if (!fields[1].is_null()) {
    const std::string stored = bytes_of_hex(fields[1].c_str());
    row.found.fingerprint = Fingerprint::from_bytes(std::as_bytes(std::span{stored}));
  }
  if (!fields[2].is_null()) row.found.value = bytes_of_hex(fields[2].c_str());
  if (std::string_view{fields[4].c_str()} == "t") {
    row.lease.emplace();
    if (!fields[5].is_null())
      row.lease->rest = std::chrono::microseconds{fields[5].template as<std::int64_t>()};
  }
  return row;
}

/// What a row that holds a key answers to a claim of it; nullopt: there is none, or it is free again.
[[nodiscard]] inline std::optional<Applied> answer_of(const pqxx::result& rows) {
  if (rows.empty()) return std::nullopt;
  auto row = row_of(rows[0]);
  if (!row || row->free) return std::nullopt;
  if (row->lease) return *row->lease;
  return std::move(row->found);
}

/// One transaction on one session: opened with a claim, worked in, verified and committed.
///
/// `clean()` tells afterwards whether the server confirmed that no transaction is open; only then may the
/// session be used again.
class Attempt {
 public:
  Attempt(Session& session, const Statements& statements, const PostgresOptions& options, Spelling spelling)
      : session_{session},
        statements_{statements},
        options_{options},
        spelling_{spelling},
        tx_{*session.connection} {
    tx_.schema_ = options.schema;
    if (spelling == Spelling::prepared) tx_.session_ = &session;
  }

  [[nodiscard]] Spelling spelling() const noexcept { return spelling_; }

  /// The rows of the claim: the first column of the first is the transaction's id.
  using Opened = std::variant<pqxx::result, Trouble>;

  /// Opens the transaction with a message that claims. Throws: ConfigurationError.
  [[nodiscard]] Opened open(const std::string& message) {
    try {
      prepare();
      pqxx::result claimed = tx_.open_with(message);
      if (!claimed.empty()) xid_ = claimed[0][0].c_str();
      return claimed;
    } catch (const std::exception&) {
      const auto error = current_driver_error();
      if (!error) throw;
      failure_ = failed_statement(*error);
      return trouble_of(options_, *error, session_);
    }
  }

  /// Asks within the transaction. Throws: the driver's errors.
  [[nodiscard]] pqxx::result ask(const std::string& message) { return tx_.send(message); }

  /// Asks with a message that leaves the transaction first. Throws: the driver's errors.
  [[nodiscard]] pqxx::result ask_and_leave(const std::string& message) {
    pqxx::result rows = tx_.send(message);
    over_and_clean();
    return rows;
  }

  [[nodiscard]] const std::string& xid() const noexcept { return xid_; }

  /// What is done in the transaction; returns the message that verifies and commits it.
  using Work = idem::detail::FunctionRef<std::string(Transaction&)>;

  /// Works and commits. `token`: of the claim. Throws: ConfigurationError — the work let it out, and is
  /// rolled back.
  [[nodiscard]] Applied run(const ClaimToken& token, Work work) {
    tx_.stage_ = Transaction::Stage::handler_at_work;
    try {
      tx_.commit_message_ = work(tx_);
    } catch (const ConfigurationError&) {
      static_cast<void>(rolled_back({}, NothingFailed{}));
      throw;
    } catch (...) {
      const auto error = current_driver_error();
      if (!error) return rolled_back(idem::detail::handler_failure(), NothingFailed{});
      return rolled_back(in_handler(*error), StatementFailed{});
    }
    if (tx_.ended_by_handler_) return rolled_back({}, StatementFailed{});
    return commit(token);
  }

  /// Rolls back what a failed claim left behind.
  void roll_back_claim() {
    try {
      tx_.send("ROLLBACK");
      over_and_clean();
    } catch (const std::exception&) {  // then the session is not used again
    }
  }

  /// Whether the server's session does not know the statements that we prepared (the handler dropped them), or
  /// knows those of others (it is a pooler's): the next attempt spells them in full.
  [[nodiscard]] bool unprepared() const noexcept { return unprepared_ || tx_.unprepared_; }
  /// Whether a prepared statement of the handler was no longer to be used: not the handler's fault.
  [[nodiscard]] bool stale_plan() const noexcept { return tx_.stale_plan_; }
  [[nodiscard]] bool clean() const noexcept { return clean_; }
  /// After Trouble::failed.
  [[nodiscard]] const Failed& failure() const noexcept { return failure_; }

 private:
  struct NothingFailed {};
  struct StatementFailed {};

  void prepare() {
    if (spelling_ == Spelling::in_full || session_.prepared) return;
    tx_.send(statements_.prepare());
    session_.prepared = true;
  }

  /// The failure behind an error that the handler's SQL met, and let out.
  [[nodiscard]] Failed in_handler(const DriverError& error) const {
    const bool hides_the_first = error.sqlstate == "25P02" && !tx_.first_error_.empty();
    return failed_in_transaction(options_, error, hides_the_first ? tx_.first_error_ : error.sqlstate);
  }

  [[nodiscard]] Applied commit(const ClaimToken& token) {
    try {
      tx_.stage_ = Transaction::Stage::committing;
      static_cast<pqxx::dbtransaction&>(tx_).commit();
      clean_ = true;
      return Committed{};
    } catch (const std::exception& e) {
      tx_.stage_ = Transaction::Stage::over;
      const auto error = current_driver_error();
      if (!error)
        return rolled_back({.failure = {ErrorClass::transient, {}, first_line(e.what())}}, StatementFailed{});
      return commit_failed(*error, token);
    }
  }

  [[nodiscard]] Applied commit_failed(const DriverError& error, const ClaimToken& token) {
    if (error.connection_lost && !tx_.commit_sent_) return failed_in_transaction(options_, error, {});
    if (error.message.find(ended_mark) != std::string::npos) return ended_by_handler();
    if (error.sqlstate == "26000" && error.message.find(statements_.guard_name()) != std::string::npos) {
      unprepared_ = true;
      roll_back_claim();
      return Failed{.failure = {ErrorClass::transient, error.sqlstate,
                                "the handler dropped the session's prepared statements"},
                    .fault = Fault::store};
    }
    if (error.sqlstate == "42501" && error.message.ends_with(" keys")) {  // a value is stored by an UPDATE
      roll_back_claim();
      throw ConfigurationError{explain_configuration(options_.schema, error)};
    }
    if (error.sqlstate == "25P02")
      return rolled_back({.failure = {ErrorClass::transient, error.sqlstate, swallowed()}},
                         StatementFailed{});
    if (error.connection_lost || class_at_commit(options_, error.sqlstate) == ErrorClass::in_doubt)
      return InDoubt{token, {ErrorClass::in_doubt, std::string{code::in_doubt}, error.message}};
    roll_back_claim();
    return failed_at_commit(options_, error);
  }

  [[nodiscard]] std::string swallowed() const {
    return fmt::format(
        "the handler went on after an SQL error{}{}: let it out, or use a subtransaction for what may fail",
        tx_.first_error_.empty() ? "" : " of SQLSTATE ", tx_.first_error_);
  }

  [[nodiscard]] static Failed ended_by_handler() {
    return {
        .failure = {
            ErrorClass::permanent, std::string{code::transaction_ended_by_handler},
            "the handler ended the transaction (COMMIT, ROLLBACK, commit() or abort()); a handler returns to commit and throws to roll back. What it committed itself stays"}};
  }

  /// Rolls back after the handler. Without a failed statement, one message asks whether the transaction is
  /// still ours and ends it; a failed transaction can answer only afterwards.
  [[nodiscard]] Failed rolled_back(Failed failure, NothingFailed) {
    if (tx_.ended_by_handler_) return rolled_back(std::move(failure), StatementFailed{});
    try {
      tx_.send(statements_.roll_back(xid_, spelling_));
      over_and_clean();
      return failure;
    } catch (const std::exception&) {
      const auto error = current_driver_error();
      if (error && error->message.find(ended_mark) != std::string::npos) return ended_by_handler();
      if (error && error->sqlstate == "25P02") return rolled_back(std::move(failure), StatementFailed{});
      return unless_lost(std::move(failure), error);
    }
  }

  [[nodiscard]] Failed rolled_back(Failed failure, StatementFailed) {
    try {
      const pqxx::result fate = tx_.send(Statements::roll_back_failed(xid_));
      over_and_clean();
      const bool committed = std::string_view{fate[0][0].c_str()} == "committed";
      return committed || tx_.ended_by_handler_ ? ended_by_handler() : failure;
    } catch (const std::exception&) {
      const auto error = current_driver_error();
      if (tx_.ended_by_handler_ || (error && error->sqlstate == "25P01")) return ended_by_handler();
      return unless_lost(std::move(failure), error);
    }
  }

  /// A connection that is gone explains what a handler made of it, but for what it called permanent itself.
  [[nodiscard]] Failed unless_lost(Failed failure, const std::optional<DriverError>& error) const {
    const bool lost = error && error->connection_lost;
    if (!lost || failure.failure.kind == ErrorClass::permanent) return failure;
    return failed_in_transaction(options_, *error, {});
  }

  void over_and_clean() noexcept {
    tx_.stage_ = Transaction::Stage::over;
    clean_ = true;
  }

  Session& session_;
  const Statements& statements_;
  const PostgresOptions& options_;
  Spelling spelling_;
  Transaction tx_;
  std::string xid_;
  Failed failure_;
  bool clean_ = false;
  bool unprepared_ = false;
};

}  // namespace idem::postgres::detail
