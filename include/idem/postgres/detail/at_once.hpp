// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/detail/handler_failure.hpp>
#include <idem/postgres/detail/attempt.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/session.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/postgres/statement.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// The whole way of an event in one message: BEGIN, claim, effect, guard, COMMIT.
///
/// The claim stops the message with an error of our own when the key is not ours, so that nothing after it is
/// run; so does an effect that did not affect as many rows as it said. Each statement of the effect is prepared
/// by the driver's own call, which takes one statement and no more: no text of the caller's is ever a part of
/// the message.
class AtOnce {
 public:
  AtOnce(const Statements& statements, const PostgresOptions& options)
      : statements_{statements}, options_{options} {
    const std::string claim = fmt::format(
        "WITH ours AS (INSERT INTO {}.keys (tenant, consumer, event_id, claim_token, fingerprint) "
        "VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant, consumer, event_id) DO NOTHING "
        "RETURNING pg_current_xact_id()::text AS xid) "
        "SELECT CASE WHEN EXISTS (SELECT FROM ours) THEN set_config('idem.xid', (SELECT xid FROM ours), true) || "
        "set_config('lock_timeout', $6, true) ELSE '{}'::text::regclass::text END",
        identifier(options.schema), taken_mark);
    // The setting went with its transaction, if that is not this one any more. (PostgreSQL 15 to 18 end a session
    // in which EXECUTE runs a COMMIT or a ROLLBACK; that is their way, not their promise.)
    const std::string guard =
        "SELECT " +
        Statements::or_fail(
            "pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM current_setting('idem.xid', true)");
    claim_name_ = name_of("claim_or_stop", claim);
    guard_name_ = name_of("guard_at_once", guard);
    prepare_ = fmt::format("PREPARE {} (text, text, text, uuid, bytea, text) AS {}; PREPARE {} AS {}",
                           claim_name_, claim, guard_name_, guard);
  }

  /// Nothing is stored; what stood in the way is for the usual way to find out, and to say.
  struct UsualWay {
    std::string sqlstate = {};
    /// The server session does not know what was prepared: there is a pooler between.
    [[nodiscard]] bool unprepared() const { return sqlstate == "26000" || sqlstate == "42P05"; }
  };

  /// Gives the session back unless something is left open on it.
  [[nodiscard]] std::variant<Applied, UsualWay> run(const Claim& claim, const postgres::Statements& effect,
                                                    Duration wait, Pool::Loan& loan) const {
    const ClaimToken token = random_token();
    bool sent = false;
    std::optional<DriverError> error;
    try {
      const std::string message = whole(claim, token, effect, wait, *loan);
      if (message.empty()) {
        loan.give_back();
        return UsualWay{};
      }
      sent = true;
      pqxx::nontransaction{*loan->connection}.exec(message);
    } catch (const std::exception&) {
      error = current_driver_error();
      if (!error) throw;
    }
    if (!error) {
      loan.give_back();
      return Applied{Committed{}};
    }
    if (sent &&
        (error->connection_lost || class_at_commit(options_, error->sqlstate) == ErrorClass::in_doubt))
      return Applied{InDoubt{token, {ErrorClass::in_doubt, std::string{code::in_doubt}, error->message}}};
    if (error->message.find(taken_mark) != std::string::npos) {
      if (auto taken = answer_of(leave(loan, statements_.find(claim.key, Spelling::in_full))))
        return *std::move(taken);
      return UsualWay{};
    }
    // A plan that outlived its table goes with its session.
    if (error->sqlstate != "0A000") static_cast<void>(leave(loan, "ROLLBACK"));
    if (const auto at = error->message.find(rows_mark); at != std::string::npos)
      return Applied{not_as_expected(std::string_view{error->message}.substr(at + rows_mark.size()), token)};
    return UsualWay{error->sqlstate};
  }

 private:
  static constexpr std::string_view taken_mark = "idem_the_key_is_taken";
  static constexpr std::string_view rows_mark = "idem_rows_affected_and_expected_";

  /// Leaves the failed transaction with a message, and gives the session back if that went well.
  [[nodiscard]] static pqxx::result leave(Pool::Loan& loan, const std::string& message) {
    try {
      pqxx::result rows = pqxx::nontransaction{*loan->connection}.exec(message);
      loan.give_back();
      return rows;
    } catch (const std::exception&) {
      if (!current_driver_error()) throw;
      return {};
    }
  }

  /// Empty: an effect cannot be prepared here.
  [[nodiscard]] std::string whole(const Claim& claim, const ClaimToken& token,
                                  const postgres::Statements& effect, Duration wait, Session& session) const {
    if (!session.at_once) {
      pqxx::nontransaction{*session.connection}.exec(prepare_);
      session.at_once = true;
    }
    std::string sql = statements_.open(claim.key, wait);
    sql += fmt::format("EXECUTE {} ({}, {}, {}, '{}', {}, {}); ", claim_name_, text_value(claim.key.tenant()),
                       text_value(claim.key.consumer()), text_value(claim.key.event_id()), hex_of(token),
                       bytea_or_null(claim.fingerprint), literal(session.lock_timeout));
    for (const Statement& statement : effect) {
      const std::string* const name = session.texts.now(*session.connection, spelled(statement));
      if (name == nullptr) return {};
      sql += "EXECUTE ";
      sql += *name;
      char separator = '(';
      for (const auto& parameter : statement.parameters()) {
        sql += separator;
        sql += parameter ? literal(*parameter) : "NULL";
        separator = ',';
      }
      sql += separator == ',' ? "); " : "; ";
    }
    return sql + "EXECUTE " + guard_name_ + "; COMMIT";
  }

  [[nodiscard]] static std::string spelled(const Statement& statement) {
    if (!statement.rows()) return statement.sql();
    return fmt::format(
        "WITH idem_effect AS (\n{}\nRETURNING 1) SELECT CASE WHEN count(*) = {} THEN NULL "
        "ELSE ('{}' || count(*)::text || '_{}')::text::regclass END FROM idem_effect",
        statement.sql(), *statement.rows(), rows_mark, *statement.rows());
  }

  /// `counts`: affected and expected, joined by an underscore.
  [[nodiscard]] static Failed not_as_expected(std::string_view counts, const ClaimToken& token) {
    std::uint64_t affected = 0;
    std::uint64_t expected = 0;
    const auto end = std::from_chars(counts.data(), counts.data() + counts.size(), affected).ptr;
    if (end != counts.data() + counts.size())
      std::from_chars(end + 1, counts.data() + counts.size(), expected);
    Failed failed = idem::detail::precondition_failed(rows_differ(affected, expected));
    failed.token = token;
    return failed;
  }

  const Statements& statements_;
  const PostgresOptions& options_;
  std::string claim_name_;
  std::string guard_name_;
  std::string prepare_;
};

}  // namespace idem::postgres::detail
