// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/postgres/detail/sql_text.hpp>

namespace idem::postgres {

/// The version of the tables that this library needs; `check()` compares it with what it finds.
inline constexpr int schema_version = 1;

/// The SQL that makes, or upgrades to, this version's tables: for `create_schema()`, or for a DBA to read and
/// run.
///
/// It may be run again, and by two at once (an advisory lock makes the second one wait); it is one
/// transaction. A worker's role needs USAGE on the schema, SELECT, INSERT and UPDATE on `keys`, and SELECT on
/// `schema_info`; for leases also USAGE on the sequence `fences`, and to count starts SELECT, INSERT and
/// UPDATE on `attempts`.
[[nodiscard]] inline std::string schema_sql(std::string_view schema = "idem") {
  return fmt::format(R"(BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_advisory_xact_lock(hashtextextended({name_literal}, 1768186221));
CREATE SCHEMA IF NOT EXISTS {name};
-- One row for each event whose effect is committed (written in the effect's own transaction), or is leased.
CREATE TABLE IF NOT EXISTS {name}.keys (
  tenant       text COLLATE "C" NOT NULL,
  consumer     text COLLATE "C" NOT NULL,
  event_id     text COLLATE "C" NOT NULL,
  claim_token  uuid NOT NULL,           -- of the attempt that committed: resolves a lost COMMIT answer
  fingerprint  bytea,                   -- scheme, revision, SHA-256; NULL: not given
  value        bytea,                   -- what the handler returned, encoded; NULL: nothing
  committed_at timestamptz DEFAULT clock_timestamp(),  -- NULL: leased, its effect is not there yet
  window_ends  timestamptz,             -- until when the key counts; NULL: for ever
  generation   integer NOT NULL DEFAULT 1,  -- how often the key was taken, ended windows included
  leased_until timestamptz,             -- of an effect outside the database; NULL: no end
  fence        bigint,                  -- the fencing token of the last lease
  PRIMARY KEY (tenant, consumer, event_id)
);
-- How often an event's handler was started, for consumers that count here: starts without an end are crashes.
CREATE TABLE IF NOT EXISTS {name}.attempts (
  tenant      text COLLATE "C" NOT NULL,
  consumer    text COLLATE "C" NOT NULL,
  event_id    text COLLATE "C" NOT NULL,
  starts      integer NOT NULL,
  failures    integer NOT NULL DEFAULT 0,
  open_starts uuid[] NOT NULL,           -- of starts that have not ended, the latest 16
  times_done  integer NOT NULL,          -- how often the event was done before these starts: they count for one window
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, consumer, event_id)
);
-- Fencing tokens: one sequence for all keys, so that they grow for ever.
CREATE SEQUENCE IF NOT EXISTS {name}.fences;
CREATE TABLE IF NOT EXISTS {name}.schema_info (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  version  integer NOT NULL
);
INSERT INTO {name}.schema_info (version) VALUES ({version})
  ON CONFLICT (only_row) DO UPDATE SET version = excluded.version WHERE schema_info.version < excluded.version;
COMMIT;
)",
                     fmt::arg("name", detail::identifier(schema)),
                     fmt::arg("name_literal", detail::literal(schema)), fmt::arg("version", schema_version));
}

}  // namespace idem::postgres
