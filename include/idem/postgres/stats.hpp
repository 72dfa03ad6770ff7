// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/detail/prometheus.hpp>
#include <idem/duration.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/postgres/store.hpp>

namespace idem::postgres {

/// What is in a store's tables. Ages are by the server's clock, and 0 where there is nothing to be old.
struct Stats {
  struct Keys {
    std::optional<std::uint64_t> rows = {};  ///< as the last ANALYZE or VACUUM saw it; nullopt: none did yet
    std::uint64_t bytes = 0;                 ///< with its indexes
    std::uint64_t ended = 0;      ///< windows that ended and wait for a purge; counted up to 100,000
    Duration oldest_ended_age{};  ///< how long the first of them has waited
  };
  struct Leases {
    std::uint64_t live = 0;
    /// Ended without an effect, and not taken over: their owner gave up or died. Not those with an open dead letter.
    std::uint64_t overdue = 0;
    Duration oldest_overdue_age{};  ///< since it ended
  };
  struct Outbox {
    std::uint64_t claimable = 0;      ///< due, with nothing before it in its lane that waits or is being sent
    std::uint64_t behind = 0;         ///< due, and behind a message of its lane that is parked or being sent
    std::uint64_t parked = 0;         ///< not due yet: delayed, or waiting for its next try
    std::uint64_t sending = 0;        ///< claimed by a relay
    std::uint64_t dead = 0;           ///< given up
    std::uint64_t failing = 0;        ///< of the first four, those whose last try failed
    Duration oldest_claimable_age{};  ///< since it became due
    std::uint64_t bytes = 0;          ///< with its indexes
  };
  struct DeadLetters {
    std::uint64_t open = 0;
    std::uint64_t last_hour = 0;  ///< of these, recorded in the last hour
    Duration oldest_age{};        ///< since its first recording
  };
  struct Purge {
    std::optional<Duration> age = {};  ///< since one went through everything; nullopt: none did
    std::uint64_t rows = 0;            ///< that it removed
    std::uint64_t removals = 0;        ///< how often keys were removed, by purges or by an operator
  };

  Keys keys = {};
  Leases leases = {};
  Outbox outbox = {};
  DeadLetters dead_letters = {};
  Purge purge = {};
  int schema_version = 0;
};

namespace detail {

/// One row: the numbers of Stats, in its order. Nothing counts the keys, nor the messages that were sent.
[[nodiscard]] inline std::string stats_sql(const Upkeep& upkeep) {
  const auto age = [](std::string_view since) {
    return fmt::format("(EXTRACT(EPOCH FROM (SELECT at FROM now) - ({})) * 1000000)::bigint", since);
  };
  return fmt::format(
      "WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at), "
      "ended AS (SELECT k.window_ends FROM {keys} k WHERE k.window_ends <= (SELECT at FROM now) AND "
      "k.committed_at IS NOT NULL AND NOT {letter} ORDER BY k.window_ends LIMIT 100000), "
      "leases AS (SELECT k.leased_until, COALESCE(k.leased_until <= (SELECT at FROM now), false) AND NOT {letter} "
      "AS overdue, COALESCE(k.leased_until > (SELECT at FROM now), true) AS live "
      "FROM {keys} k WHERE k.committed_at IS NULL), "
      "unsent AS (SELECT lane, seq, due_at, enqueued_at, last_error IS NOT NULL AS failing, "
      "COALESCE(claimed_until > (SELECT at FROM now), false) AS sending, due_at > (SELECT at FROM now) AS early "
      "FROM {outbox} WHERE sent_at IS NULL AND dead_at IS NULL), "
      "lanes AS (SELECT *, bool_or(sending OR early) OVER (PARTITION BY lane ORDER BY seq) AS blocked FROM unsent) "
      "SELECT (SELECT reltuples::bigint FROM pg_catalog.pg_class WHERE oid = {keys_name}::regclass), "
      "pg_total_relation_size({keys_name}::regclass), e.n, e.age, l.live, l.overdue, l.age, "
      "o.claimable, o.behind, o.parked, o.sending, "
      "(SELECT count(*) FROM {outbox} WHERE dead_at IS NOT NULL), o.failing, o.age, "
      "pg_total_relation_size({outbox_name}::regclass), d.open, d.last_hour, d.age, "
      "{purge_age}, COALESCE(i.purged_rows, 0), i.purges, i.version "
      "FROM {info} i, (SELECT count(*) AS n, {ended_age} AS age FROM ended) e, "
      "(SELECT count(*) FILTER (WHERE live) AS live, count(*) FILTER (WHERE overdue) AS overdue, {lease_age} AS age "
      "FROM leases) l, "
      "(SELECT count(*) FILTER (WHERE NOT blocked) AS claimable, "
      "count(*) FILTER (WHERE blocked AND NOT sending AND NOT early) AS behind, "
      "count(*) FILTER (WHERE early AND NOT sending) AS parked, count(*) FILTER (WHERE sending) AS sending, "
      "count(*) FILTER (WHERE failing) AS failing, {claimable_age} AS age FROM lanes) o, "
      "(SELECT count(*) AS open, "
      "count(*) FILTER (WHERE last_at > (SELECT at FROM now) - '3600 seconds'::interval) AS last_hour, "
      "{letter_age} AS age FROM {letters} WHERE closed_at IS NULL) d",
      fmt::arg("keys", upkeep.table("keys")), fmt::arg("keys_name", text_value(upkeep.table("keys"))),
      fmt::arg("outbox", upkeep.table("outbox")), fmt::arg("outbox_name", text_value(upkeep.table("outbox"))),
      fmt::arg("letters", upkeep.table("dead_letters")), fmt::arg("info", upkeep.table("schema_info")),
      fmt::arg("letter", fmt::format("EXISTS (SELECT 1 FROM {} d WHERE d.tenant = k.tenant AND d.consumer = "
                                     "k.consumer AND d.event_id = k.event_id AND d.closed_at IS NULL)",
                                     upkeep.table("dead_letters"))),
      fmt::arg("purge_age", age("i.purged_at")), fmt::arg("ended_age", age("min(window_ends)")),
      fmt::arg("lease_age", age("min(leased_until) FILTER (WHERE overdue)")),
      fmt::arg("claimable_age", age("min(GREATEST(due_at, enqueued_at)) FILTER (WHERE NOT blocked)")),
      fmt::arg("letter_age", age("min(first_at)")));
}

/// Reads the columns of a row in turn.
class InTurn {
 public:
  explicit InTurn(const pqxx::result& rows) : rows_{rows} {}

  [[nodiscard]] std::optional<std::int64_t> next() {
    const auto field = rows_[0][column_++];
    if (field.is_null()) return std::nullopt;
    return field.as<std::int64_t>();
  }
  [[nodiscard]] std::uint64_t number() {
    return static_cast<std::uint64_t>((std::max<std::int64_t>)(next().value_or(0), 0));
  }
  [[nodiscard]] Duration age() {
    return std::chrono::microseconds{(std::max<std::int64_t>)(next().value_or(0), 0)};
  }

 private:
  const pqxx::result& rows_;
  int column_ = 0;
};

}  // namespace detail

/// Reads what is in a store's tables, with one round trip on a connection of its own.
///
/// It costs a pass over the leases, the unsent messages and the open dead letters; the number of keys and of
/// messages sent does not matter. Its role needs what the operator's has (see `roles_sql()`).
///
/// Throws: TransientError — the server cannot be reached; ConfigurationError — the schema or a right is missing.
[[nodiscard]] inline Stats stats(const PostgresStore& store) {
  detail::Upkeep upkeep{store};
  const pqxx::result rows = upkeep.ask(detail::stats_sql(upkeep));
  if (rows.empty()) throw ConfigurationError{"schema_info has no row; run create_schema()"};
  detail::InTurn read{rows};
  Stats stats;
  if (const auto estimate = read.next(); estimate && *estimate >= 0)
    stats.keys.rows = static_cast<std::uint64_t>(*estimate);
  stats.keys.bytes = read.number();
  stats.keys.ended = read.number();
  stats.keys.oldest_ended_age = read.age();
  stats.leases.live = read.number();
  stats.leases.overdue = read.number();
  stats.leases.oldest_overdue_age = read.age();
  stats.outbox.claimable = read.number();
  stats.outbox.behind = read.number();
  stats.outbox.parked = read.number();
  stats.outbox.sending = read.number();
  stats.outbox.dead = read.number();
  stats.outbox.failing = read.number();
  stats.outbox.oldest_claimable_age = read.age();
  stats.outbox.bytes = read.number();
  stats.dead_letters.open = read.number();
  stats.dead_letters.last_hour = read.number();
  stats.dead_letters.oldest_age = read.age();
  if (const auto age = read.next())
    stats.purge.age = std::chrono::microseconds{(std::max<std::int64_t>)(*age, 0)};
  stats.purge.rows = read.number();
  stats.purge.removals = read.number();
  stats.schema_version = static_cast<int>(read.number());
  return stats;
}

/// The numbers in Prometheus' text format 0.0.4, to be served with those of MetricsObserver.
///
/// What is not known (the rows before the first ANALYZE, the age of a purge before the first) has no sample.
[[nodiscard]] inline std::string prometheus_text(const Stats& stats) {
  idem::detail::PrometheusText out;
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    out.single(name, "gauge", help, value);
  };
  out.family("idem_keys_rows", "gauge", "Keys, as the last ANALYZE or VACUUM saw it.");
  if (stats.keys.rows) out.sample({}, *stats.keys.rows);
  gauge("idem_keys_bytes", "Size of the keys and their indexes.", stats.keys.bytes);
  gauge("idem_keys_ended", "Keys whose window ended and which wait for a purge, counted up to 100000.",
        stats.keys.ended);
  gauge("idem_keys_ended_oldest_age_seconds", "How long the first of them has waited.",
        stats.keys.oldest_ended_age);
  out.family("idem_leases", "gauge", "Leases without an effect yet; overdue: ended, and not taken over.");
  out.sample({{"state", "live"}}, stats.leases.live);
  out.sample({{"state", "overdue"}}, stats.leases.overdue);
  gauge("idem_leases_overdue_oldest_age_seconds", "Since when the first overdue lease has ended.",
        stats.leases.oldest_overdue_age);
  out.family("idem_outbox_messages", "gauge", "Messages of the outbox that are not sent.");
  out.sample({{"state", "claimable"}}, stats.outbox.claimable);
  out.sample({{"state", "behind"}}, stats.outbox.behind);
  out.sample({{"state", "parked"}}, stats.outbox.parked);
  out.sample({{"state", "sending"}}, stats.outbox.sending);
  out.sample({{"state", "dead"}}, stats.outbox.dead);
  gauge("idem_outbox_failing_messages", "Messages of the outbox whose last try failed.",
        stats.outbox.failing);
  gauge("idem_outbox_oldest_claimable_age_seconds", "How long the first claimable message has been due.",
        stats.outbox.oldest_claimable_age);
  gauge("idem_outbox_bytes", "Size of the outbox and its indexes.", stats.outbox.bytes);
  gauge("idem_dead_letters_open", "Dead letters that nobody has closed.", stats.dead_letters.open);
  gauge("idem_dead_letters_open_last_hour", "Of these, recorded in the last hour.",
        stats.dead_letters.last_hour);
  gauge("idem_dead_letters_oldest_age_seconds", "Since when the oldest of them is there.",
        stats.dead_letters.oldest_age);
  out.family("idem_purge_age_seconds", "gauge", "Since when a purge last went through everything.");
  if (stats.purge.age) out.sample({}, *stats.purge.age);
  gauge("idem_purge_rows", "Rows that this purge removed.", stats.purge.rows);
  out.single("idem_key_removals_total", "counter",
             "How often keys were removed, by purges or by an operator.", stats.purge.removals);
  gauge("idem_schema_version", "Version of the tables.", stats.schema_version);
  return out.text();
}

}  // namespace idem::postgres
