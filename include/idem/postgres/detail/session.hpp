// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/postgres/detail/connect_probe.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/prepared_texts.hpp>

namespace idem::postgres::detail {

/// One connection, and what we must know of it.
struct Session {
  std::unique_ptr<pqxx::connection> connection;
  std::string lock_timeout;           ///< the session's own, put back after the claim
  bool read_only_by_default = false;  ///< default_transaction_read_only
  bool prepared = false;              ///< our statements are known to it
  bool at_once = false;               ///< and those of AtOnce
  PreparedTexts texts = {};           ///< the callers' own
};

/// The server could not be reached; it may be back soon.
class Unreachable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using ConnectionFactory = std::function<std::unique_ptr<pqxx::connection>()>;

/// Opens sessions.
class Connector {
 public:
  explicit Connector(std::string dsn)
      : open_{[dsn] { return std::make_unique<pqxx::connection>(dsn); }}, dsn_{std::move(dsn)} {}
  explicit Connector(ConnectionFactory factory) : open_{std::move(factory)} {}

  /// Throws: Unreachable — no server answered; ConfigurationError — one did, and refused what we ask for
  /// good.
  [[nodiscard]] Session open() const {
    Session session;
    try {
      session.connection = open_();
      if (session.connection == nullptr)
        throw ConfigurationError{
            "the connection factory returned no connection; return one that is open, or throw"};
      tame(*session.connection);
      pqxx::nontransaction setup{*session.connection};
      const pqxx::result settings = setup.exec(
          "SELECT current_setting('lock_timeout'), current_setting('default_transaction_read_only')");
      session.lock_timeout = settings[0][0].c_str();
      session.read_only_by_default = std::string_view{settings[0][1].c_str()} == "on";
      return session;
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception& e) {
      const std::string reason = first_line(e.what());
      if (session.connection == nullptr && dsn_) explain_refusal(reason);
      throw Unreachable{reason};
    }
  }

 private:
  /// Throws ConfigurationError if the server, or libpq, says that the connection string can never work.
  void explain_refusal(std::string_view reason) const {
    const std::string state = connect_refusal(*dsn_);
    if (state.empty()) return;
    throw ConfigurationError{fmt::format(
        "PostgreSQL refuses the connection (SQLSTATE {}): {}; mend the database, role, password or "
        "connection string",
        state, reason)};
  }

  ConnectionFactory open_;
  std::optional<std::string> dsn_ = {};
};

}  // namespace idem::postgres::detail
