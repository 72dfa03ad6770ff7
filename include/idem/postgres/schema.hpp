// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/postgres/detail/sql_text.hpp>

namespace idem::postgres {

/// The version of the tables that this library needs; `check()` compares it with what it finds.
inline constexpr int schema_version = 2;

/// The SQL that makes, or upgrades to, this version's tables: for `create_schema()`, or for a DBA to read and
/// run.
///
/// It may be run again, and by two at once (an advisory lock makes the second one wait); it is one
/// transaction. An upgrade keeps every row, and workers may run meanwhile: it takes no lock that makes them
/// wait longer than one pass over `keys` (version 2: for its index; to spare them even that, run that CREATE
/// INDEX with CONCURRENTLY first). The rights that workers, relays and janitors need on them: see `roles_sql()`.
[[nodiscard]] inline std::string schema_sql(std::string_view schema = "idem") {
  return fmt::format(R"(BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_advisory_xact_lock(hashtextextended({name_literal}, 1768186221::bigint));
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
-- For retention: rows that count for ever cost this index nothing.
CREATE INDEX IF NOT EXISTS keys_window_ends ON {name}.keys (window_ends) WHERE window_ends IS NOT NULL;
-- For numbers: leases only. Not by their end, so that a heartbeat changes no indexed column.
CREATE INDEX IF NOT EXISTS keys_leased ON {name}.keys (consumer) WHERE committed_at IS NULL;
-- Fencing tokens: one sequence for all keys, so that they grow for ever.
CREATE SEQUENCE IF NOT EXISTS {name}.fences;
CREATE TABLE IF NOT EXISTS {name}.schema_info (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  version  integer NOT NULL
);
-- How often retention or an operator has removed keys: what derives ids from a key's generation reads it too.
ALTER TABLE {name}.schema_info ADD COLUMN IF NOT EXISTS purges bigint NOT NULL DEFAULT 0;
-- When retention last went through everything, and how many rows it removed then.
ALTER TABLE {name}.schema_info ADD COLUMN IF NOT EXISTS purged_at timestamptz;
ALTER TABLE {name}.schema_info ADD COLUMN IF NOT EXISTS purged_rows bigint;
-- What handlers publish, written in their own transactions; relays send it on.
CREATE TABLE IF NOT EXISTS {name}.outbox (
  seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the order of insertion; commits have another
  id            text COLLATE "C" NOT NULL,  -- what the receiver deduplicates by
  tenant        text COLLATE "C" NOT NULL,  -- of the event whose handler published it
  consumer      text COLLATE "C" NOT NULL,
  event_id      text COLLATE "C" NOT NULL,
  topic         text NOT NULL,
  key           text COLLATE "C" NOT NULL,  -- empty: it is in order with nothing
  lane          text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
    length(tenant) || ':' || tenant || CASE WHEN key = '' THEN '#' || id ELSE '=' || key END) STORED,
  payload       bytea NOT NULL,
  headers       text[] NOT NULL DEFAULT '{{}}',  -- name, value, name, value, ...
  enqueued_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),  -- not sent before
  attempts      integer NOT NULL DEFAULT 0,  -- that failed, and were the message's fault
  claimed_by    uuid,                        -- the relay's claim that is sending it
  claimed_until timestamptz,
  last_error    text,
  sent_at       timestamptz,
  dead_at       timestamptz,                 -- given up; its key goes on without it
  UNIQUE (tenant, id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000);  -- each message leaves dead rows
-- The rows of a lane in their order; what is being sent; what retention removes.
CREATE INDEX IF NOT EXISTS outbox_waiting ON {name}.outbox (lane, seq) WHERE sent_at IS NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_claimed ON {name}.outbox (lane)
  WHERE claimed_until IS NOT NULL AND sent_at IS NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_sent ON {name}.outbox (sent_at) WHERE sent_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_dead ON {name}.outbox (dead_at) WHERE dead_at IS NOT NULL;
-- Events that were given up, or whose id was taken: one record for each thing that was said under an id.
CREATE TABLE IF NOT EXISTS {name}.dead_letters (
  id             bigint GENERATED ALWAYS AS IDENTITY UNIQUE,  -- what an operator calls it
  tenant         text COLLATE "C" NOT NULL,
  consumer       text COLLATE "C" NOT NULL,
  event_id       text COLLATE "C" NOT NULL,  -- empty: the message could not be decoded
  fingerprint    bytea NOT NULL,             -- as in keys; empty: not given
  recorded       integer NOT NULL DEFAULT 1, -- how often
  last_token     uuid NOT NULL,              -- of the last recording: repeated, it counts once
  first_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  first_kind     text NOT NULL,
  first_code     text NOT NULL,
  first_message  text NOT NULL,
  last_kind      text NOT NULL,
  last_code      text NOT NULL,
  last_message   text NOT NULL,
  attempts       bigint NOT NULL,            -- handler starts in the call that recorded it last
  delivery_count bigint NOT NULL,            -- the transport's count then; 0: unknown
  ordering_key   text NOT NULL DEFAULT '',
  occurred_at    timestamptz,
  payload        bytea,                      -- only if asked for, and as the redaction left it
  payload_kept   text NOT NULL DEFAULT 'none' CHECK (payload_kept IN ('none', 'original', 'redacted')),
  redrives       integer NOT NULL DEFAULT 0,
  reopened       integer NOT NULL DEFAULT 0, -- how often it was closed and died again
  verb_token     uuid,                       -- of the last redrive or discard: repeated, it counts once
  closed_at      timestamptz,                -- NULL: open
  closed_as      text CHECK (closed_as IN ('redriven', 'discarded')),
  closed_reason  text,
  PRIMARY KEY (tenant, consumer, event_id, fingerprint)
);
CREATE INDEX IF NOT EXISTS dead_letters_open ON {name}.dead_letters (consumer, last_at) WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS dead_letters_closed ON {name}.dead_letters (closed_at) WHERE closed_at IS NOT NULL;
INSERT INTO {name}.schema_info (version) VALUES ({version})
  ON CONFLICT (only_row) DO UPDATE SET version = excluded.version WHERE schema_info.version < excluded.version;
COMMIT;
)",
                     fmt::arg("name", detail::identifier(schema)),
                     fmt::arg("name_literal", detail::literal(schema)), fmt::arg("version", schema_version));
}

}  // namespace idem::postgres
