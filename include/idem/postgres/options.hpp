// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

#include <idem/postgres/sqlstate.hpp>

namespace idem {

/// The isolation level of the transactions a PostgresStore opens.
enum class Isolation { read_committed, repeatable_read, serializable };

/// How a PostgresStore works.
struct PostgresOptions {
  /// Where the library's tables are; any name, quoted as needed.
  std::string schema = "idem";
  /// The most connections this store opens. At least 1; each call at work holds one.
  std::size_t max_connections = 8;
  /// Set in BEGIN, whatever the session's default is.
  Isolation isolation = Isolation::read_committed;
  /// SQLSTATEs that mean something else in this application.
  postgres::Reclassify reclassify = {};
  /// A setting ("app.tenant") that every transaction sets locally to the event's tenant, for row security.
  std::string tenant_setting = {};
};

}  // namespace idem
