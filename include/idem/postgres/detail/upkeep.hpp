// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/postgres/detail/messenger.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/store.hpp>

namespace idem::postgres::detail {

/// The desk beside the messages' path: what relays, dead letters, retention and numbers share.
///
/// It has one connection of its own to the store's database, opened when it is first used and replaced when it
/// breaks, so that upkeep never takes one from the handlers.
///
/// Thread safety: any number of threads, one at a time.
class Upkeep {
 public:
  explicit Upkeep(const PostgresStore& store)
      : options_{store.options_}, connector_{store.connector_}, messenger_{pool_, connector_, options_} {}

  Upkeep(const Upkeep&) = delete;
  Upkeep& operator=(const Upkeep&) = delete;

  /// The table's name with its schema, quoted.
  [[nodiscard]] std::string table(std::string_view name) const {
    return fmt::format("{}.{}", identifier(options_.schema), name);
  }
  [[nodiscard]] const PostgresOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Connector& connector() const noexcept { return connector_; }

  /// Sends statements as one message, which is one transaction (READ COMMITTED, each statement with a snapshot
  /// of its own), and returns the rows of the last. It may be carried out twice when its answer is lost: it
  /// must do the same when it is repeated. `lock_limit`: for each wait for a lock, and for the connection.
  ///
  /// Throws: TransientError — the server cannot be reached, or a lock was held for so long; PermanentError —
  /// it refuses a value; ConfigurationError — the schema or a right is missing.
  pqxx::result ask(std::string_view statements, Duration lock_limit = std::chrono::seconds{5},
                   const std::stop_token& stop = {}) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(lock_limit).count();
    auto answer = messenger_.ask(
        fmt::format(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL lock_timeout = '{}ms'; {}",
            std::clamp<std::int64_t>(ms, 1, 2147483647), statements),
        lock_limit, stop);
    if (auto* rows = std::get_if<pqxx::result>(&answer)) return std::move(*rows);
    if (std::holds_alternative<Busy>(answer))
      throw TransientError{
          "SQLSTATE 55P03: another session held a lock, or the server was busy, for the whole wait"};
    const Failure& failure = std::get<Failed>(answer).failure;
    if (failure.kind == ErrorClass::permanent) throw PermanentError{failure.message};
    throw TransientError{failure.code.empty()
                             ? failure.message
                             : fmt::format("SQLSTATE {}: {}", failure.code, failure.message)};
  }

 private:
  const PostgresOptions& options_;
  const Connector& connector_;
  Pool pool_{1};
  Messenger messenger_;
};

}  // namespace idem::postgres::detail
