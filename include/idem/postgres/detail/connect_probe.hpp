// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

// Debian keeps libpq's header in a folder of its own, which a plain `-lpq` build does not name.
#if __has_include(<libpq-fe.h>)
#include <libpq-fe.h>
#else
#include <postgresql/libpq-fe.h>
#endif

namespace idem::postgres::detail {

/// Whether a SQLSTATE met while connecting means that this connection string can never work: no such
/// database, role or password, or no right to connect.
[[nodiscard]] constexpr bool refuses_for_good(std::string_view sqlstate) noexcept {
  return sqlstate == "3D000" || sqlstate == "42501" || sqlstate.substr(0, 2) == "28";
}

/// The SQLSTATE at the end of a line of libpq's error text, as PQERRORS_SQLSTATE prints it.
[[nodiscard]] inline std::string refusal_in(std::string_view text) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const auto space = line.rfind(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view state = line.substr(space + 1);
    if (state.size() == 5 && refuses_for_good(state)) return std::string{state};
  }
  return {};
}

/// Connects once more, after a failure, only to learn the SQLSTATE that libpqxx hides; empty when there is
/// none that refuses for good. "08001" for a connection string that libpq cannot read.
///
/// Takes at most 5 s: a server that does not answer is not one that refuses.
[[nodiscard]] inline std::string connect_refusal(const std::string& dsn) {
  struct Finish {
    void operator()(PGconn* connection) const noexcept { PQfinish(connection); }
    void operator()(PQconninfoOption* options) const noexcept { PQconninfoFree(options); }
  };
  const std::unique_ptr<PQconninfoOption, Finish> understood{PQconninfoParse(dsn.c_str(), nullptr)};
  if (understood == nullptr) return "08001";

  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + std::chrono::seconds{5};
  const std::unique_ptr<PGconn, Finish> connection{PQconnectStart(dsn.c_str())};
  if (connection == nullptr) return {};
  PQsetErrorVerbosity(connection.get(), PQERRORS_SQLSTATE);

  PostgresPollingStatusType wanted = PGRES_POLLING_WRITING;
  while (PQstatus(connection.get()) != CONNECTION_BAD) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return {};
    pollfd socket{PQsocket(connection.get()),
                  static_cast<short>(wanted == PGRES_POLLING_READING ? POLLIN : POLLOUT), 0};
    if (::poll(&socket, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) return {};
    wanted = PQconnectPoll(connection.get());
    if (wanted == PGRES_POLLING_OK) return {};
    if (wanted == PGRES_POLLING_FAILED) break;
  }
  if (std::string state = refusal_in(PQerrorMessage(connection.get())); !state.empty()) return state;
  return PQconnectionNeedsPassword(connection.get()) != 0 ? "28P01" : "";
}

}  // namespace idem::postgres::detail
