// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <pqxx/pqxx>

namespace idem::tests {

/// The server of this test run, as libpq reads it from PGHOST, PGPORT, PGUSER and PGDATABASE.
[[nodiscard]] inline std::string server_dsn() { return ""; }

/// The folder of the server's unix socket.
///
/// Throws: std::runtime_error unless PGHOST is an absolute path.
[[nodiscard]] inline std::string server_socket_dir() {
  const char* host = std::getenv("PGHOST");
  if (host == nullptr || *host != '/') {
    throw std::runtime_error{
        std::string{"PGHOST is "} + (host == nullptr ? "not set" : host) +
        ", not the folder of a server's unix socket; run the tests through ctest, which starts a server"};
  }
  return host;
}

/// Runs `sql` on a new connection, each statement of it committed by itself.
inline void execute(const std::string& sql, const std::string& dsn = server_dsn()) {
  pqxx::connection connection{dsn};
  pqxx::nontransaction session{connection};
  session.exec(sql);
}

/// The first value that `sql` answers on a new connection; NULL is the empty string.
///
/// Throws: std::runtime_error when it answers no row.
[[nodiscard]] inline std::string query_value(const std::string& sql, const std::string& dsn = server_dsn()) {
  pqxx::connection connection{dsn};
  pqxx::nontransaction session{connection};
  const pqxx::result rows = session.exec(sql);
  if (rows.empty()) throw std::runtime_error{"query_value: no row from: " + sql};
  return rows[0][0].as<std::string>(std::string{});
}

/// A schema name that no other test and no other process has; nothing is made on the server.
///
/// `prefix`: lower-case letters, digits and underscores, at most 30, so that the name needs no quotes.
[[nodiscard]] inline std::string unique_schema(const std::string& prefix) {
  if (prefix.empty() || prefix.size() > 30) {
    throw std::invalid_argument{"unique_schema: the prefix '" + prefix + "' has not 1 to 30 characters"};
  }
  return prefix + query_value("SELECT '_' || replace(gen_random_uuid()::text, '-', '')");
}

/// Drops the schema and everything in it, if it is there.
inline void drop_schema(const std::string& schema) {
  execute("DROP SCHEMA IF EXISTS " + schema + " CASCADE");
}

}  // namespace idem::tests
