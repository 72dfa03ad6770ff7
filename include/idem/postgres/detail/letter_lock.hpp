// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/letter_statements.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/session.hpp>

namespace idem::postgres::detail {

/// Holds one dead letter at a time for a redrive, so that no other redrive or discard touches it.
///
/// It is an advisory lock of a transaction that is left open on a connection of its own: it locks no row, so
/// that the event may be recorded meanwhile, and it ends with the process. A connection that is lost loses it
/// early, and then two redrives may hand one event to the consumer, whose key makes one of them a duplicate.
class LetterLock {
 public:
  LetterLock(const Connector& connector, const LetterStatements& statements)
      : connector_{connector}, statements_{statements} {}
  LetterLock(const LetterLock&) = delete;
  LetterLock& operator=(const LetterLock&) = delete;

  /// False: somebody has it. Throws: TransientError, ConfigurationError.
  [[nodiscard]] bool take(std::int64_t id) {
    const std::string message = fmt::format(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 0; SELECT {}",
        statements_.lock(fmt::format("'{}'", id)));
    while (true) {
      const bool used_before = session_.has_value();
      try {
        if (!used_before) session_ = connector_.open();
        const pqxx::result rows = pqxx::nontransaction{*session_->connection}.exec(message);
        if (std::string_view{rows[0][0].c_str()} == "t") return true;
        release();
        return false;
      } catch (const Unreachable& e) {
        throw TransientError{fmt::format("the letter could not be locked: {}", e.what())};
      } catch (const ConfigurationError&) {
        throw;
      } catch (const std::exception&) {
        const auto error = current_driver_error();
        session_.reset();
        if (!error) throw;
        if (!used_before)
          throw TransientError{fmt::format("the letter could not be locked (SQLSTATE {}): {}",
                                           error->sqlstate, error->message)};
      }
    }
  }

  void release() noexcept {
    try {
      if (session_)
        static_cast<void>(pqxx::nontransaction{*session_->connection}.exec(std::string{"ROLLBACK"}));
    } catch (...) {
      session_.reset();
    }
  }

 private:
  const Connector& connector_;
  const LetterStatements& statements_;
  std::optional<Session> session_ = {};
};

}  // namespace idem::postgres::detail
