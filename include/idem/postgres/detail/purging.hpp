// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/duration.hpp>
#include <idem/key.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/detail/upkeep.hpp>

namespace idem::postgres::detail {

/// Rows of one table that may go.
struct DueRows {
  std::string table;
  std::string condition;     ///< of a row `t`
  std::string_view by = {};  ///< the indexed time column that orders them; empty: none does
  bool are_keys = false;     ///< then the count of starts goes with each
};

/// What one transaction of a purge did.
struct Batch {
  bool ours = false;  ///< false: another janitor is at work
  std::uint64_t found = 0;
  std::uint64_t removed = 0;
  std::uint64_t attempts = 0;
  std::optional<std::int64_t> reached = {};  ///< the latest time among them, in microseconds since 1970
};

[[nodiscard]] inline Batch batch_of(const pqxx::result& rows) {
  const auto row = rows[0];
  Batch batch{.ours = std::string_view{row[0].c_str()} == "t",
              .found = row[1].as<std::uint64_t>(),
              .removed = row[2].as<std::uint64_t>(),
              .attempts = row[3].as<std::uint64_t>()};
  if (!row[4].is_null()) batch.reached = row[4].as<std::int64_t>();
  return batch;
}

/// The SQL of retention.
///
/// Times are compared with the server's time when the purge began: what it removes had ended before it announced
/// itself, so that no key it removes can have read the new count of purges.
class Purging {
 public:
  explicit Purging(const Upkeep& upkeep)
      : keys_{upkeep.table("keys")},
        attempts_{upkeep.table("attempts")},
        outbox_{upkeep.table("outbox")},
        dead_letters_{upkeep.table("dead_letters")},
        schema_info_{upkeep.table("schema_info")},
        janitor_{fmt::format("pg_try_advisory_xact_lock(hashtextextended({}, 1768186222::bigint))",
                             text_value(upkeep.options().schema))},
        tenant_setting_{upkeep.options().tenant_setting} {}

  /// Asks for the server's time, for `begin_at`.
  [[nodiscard]] static std::string_view time() {
    return "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
  }
  void begin_at(std::int64_t microseconds) {
    began_ = fmt::format("('epoch'::timestamptz + '{} microseconds'::interval)", microseconds);
  }

  [[nodiscard]] DueRows ended_keys() const {
    return {.table = keys_,
            .condition = fmt::format("t.window_ends <= {} AND t.committed_at IS NOT NULL AND NOT {}", began_,
                                     open_letter()),
            .by = "window_ends",
            .are_keys = true};
  }
  [[nodiscard]] DueRows sent_messages(Duration age) const {
    return {.table = outbox_, .condition = older("sent_at", age), .by = "sent_at"};
  }
  [[nodiscard]] DueRows closed_letters(Duration age) const {
    return {.table = dead_letters_, .condition = older("closed_at", age), .by = "closed_at"};
  }
  /// Without an index for it: to be looked for `between` blocks.
  [[nodiscard]] DueRows old_keys(std::string_view consumer, Duration age) const {
    return {.table = keys_,
            .condition = fmt::format("t.consumer = {} AND ({} OR (t.committed_at IS NULL AND {})) AND NOT {}",
                                     text_value(consumer), older("committed_at", age),
                                     older("leased_until", age), open_letter()),
            .are_keys = true};
  }
  /// Counts of starts of events that have no key.
  [[nodiscard]] DueRows old_attempts(std::string_view consumer, Duration age) const {
    return {.table = attempts_,
            .condition = fmt::format(
                "t.consumer = {} AND {} AND NOT EXISTS (SELECT 1 FROM {} k WHERE {}) AND NOT {}",
                text_value(consumer), older("started_at", age), keys_, same_event("k"), open_letter())};
  }

  /// Of these rows, those as late as `reached` or later: the index's dead entries before it are not read again.
  [[nodiscard]] std::string from(const DueRows& due, std::optional<std::int64_t> reached) const {
    if (!reached) return due.condition;
    return fmt::format("t.{} >= 'epoch'::timestamptz + '{} microseconds'::interval AND {}", due.by, *reached,
                       due.condition);
  }
  /// Of these rows, those in the blocks [first, end): a scan of that range only from PostgreSQL 14 on.
  [[nodiscard]] std::string between(const DueRows& due, std::int64_t first, std::int64_t end) const {
    constexpr std::int64_t last_block = 4294967294;
    return fmt::format("t.ctid >= '({},0)'::tid AND t.ctid < '({},0)'::tid AND {}", first,
                       end < last_block ? end : last_block, due.condition);
  }
  [[nodiscard]] std::string blocks(const DueRows& due) const {
    return fmt::format(
        "SELECT (pg_relation_size({}::regclass) + current_setting('block_size')::bigint - 1) / "
        "current_setting('block_size')::bigint",
        literal(due.table));
  }

  [[nodiscard]] std::string any_key(std::string_view rows) const {
    return fmt::format("SELECT 1 FROM {} t WHERE {} LIMIT 1", keys_, rows);
  }
  /// Tells whoever derives ids from a key's past that keys are about to go.
  [[nodiscard]] std::string announce() const {
    return fmt::format("UPDATE {} SET purges = purges + 1", schema_info_);
  }
  /// A purge went through everything.
  [[nodiscard]] std::string record(std::uint64_t rows) const {
    return fmt::format("UPDATE {} SET purged_at = clock_timestamp(), purged_rows = {}", schema_info_, rows);
  }

  /// Removes some of the rows; its answer is read by `batch_of`. The condition is checked again on the rows
  /// themselves, once they are locked.
  [[nodiscard]] std::string remove(const DueRows& due, std::string_view rows, std::string_view order,
                                   std::size_t limit) const {
    const std::string place =
        order.empty()
            ? std::string{"NULL::bigint"}
            : fmt::format("(EXTRACT(EPOCH FROM max({}) FILTER (WHERE isfinite({}))) * 1000000)::bigint",
                          order, order);
    const std::string ordered = order.empty() ? std::string{} : fmt::format(" ORDER BY t.{}", order);
    std::string sql = fmt::format(
        "WITH janitor AS MATERIALIZED (SELECT {0} AS ours), "
        "due AS MATERIALIZED (SELECT t.ctid AS at{1} FROM {2} t WHERE (SELECT ours FROM janitor) AND {3}{4} "
        "LIMIT {5} FOR UPDATE OF t SKIP LOCKED), "
        "gone AS (DELETE FROM {2} t WHERE t.ctid = ANY (ARRAY(SELECT at FROM due)) AND {6} "
        "RETURNING t.tenant, t.consumer, t.event_id)",
        janitor_, order.empty() ? std::string{} : fmt::format(", t.{}", order), due.table, rows, ordered,
        limit, due.condition);
    if (due.are_keys)
      sql += fmt::format(", starts AS (DELETE FROM {} a USING gone t WHERE {} RETURNING 1)", attempts_,
                         same_event("a"));
    return sql +
           fmt::format(
               " SELECT (SELECT ours FROM janitor), count(*), (SELECT count(*) FROM gone), {}, {} FROM due",
               due.are_keys ? "(SELECT count(*) FROM starts)" : "0", place);
  }

  /// What holds the key: 'free' to be forgotten, 'leased' or 'open'; no row: nothing.
  [[nodiscard]] std::string look_at(const Key& key) const {
    return tenant(key) + fmt::format("SELECT {} FROM {} t WHERE {}", state(), keys_, where(key));
  }
  /// Removes the key and its count of starts if it is free to be forgotten; the answer is as `look_at`'s.
  [[nodiscard]] std::string forget(const Key& key) const {
    return tenant(key) + fmt::format(
                             "SELECT 1 FROM {0} t WHERE {1} FOR UPDATE; "
                             "WITH found AS MATERIALIZED (SELECT {2} AS state FROM {0} t WHERE {1}), "
                             "gone AS (DELETE FROM {0} t WHERE {1} AND {2} = 'free' RETURNING 1), "
                             "starts AS (DELETE FROM {3} t WHERE {1} AND EXISTS (SELECT 1 FROM gone)) "
                             "SELECT state FROM found",
                             keys_, where(key), state(), attempts_);
  }

 private:
  [[nodiscard]] std::string older(std::string_view column, Duration age) const {
    return fmt::format("t.{} <= {} - {}", column, began_, interval(age));
  }
  [[nodiscard]] static std::string same_event(std::string_view other) {
    return fmt::format("{0}.tenant = t.tenant AND {0}.consumer = t.consumer AND {0}.event_id = t.event_id",
                       other);
  }
  [[nodiscard]] std::string open_letter() const {
    return fmt::format("EXISTS (SELECT 1 FROM {} d WHERE {} AND d.closed_at IS NULL)", dead_letters_,
                       same_event("d"));
  }
  [[nodiscard]] std::string state() const {
    return fmt::format(
        "CASE WHEN t.committed_at IS NULL AND COALESCE(t.leased_until > clock_timestamp(), true) THEN 'leased' "
        "WHEN {} THEN 'open' ELSE 'free' END",
        open_letter());
  }
  [[nodiscard]] static std::string where(const Key& key) {
    return fmt::format("t.tenant = {} AND t.consumer = {} AND t.event_id = {}", text_value(key.tenant()),
                       text_value(key.consumer()), text_value(key.event_id()));
  }
  [[nodiscard]] std::string tenant(const Key& key) const {
    if (tenant_setting_.empty()) return {};
    return fmt::format("SELECT set_config({}, {}, true); ", text_value(tenant_setting_),
                       text_value(key.tenant()));
  }

  std::string keys_;
  std::string attempts_;
  std::string outbox_;
  std::string dead_letters_;
  std::string schema_info_;
  std::string janitor_;
  std::string tenant_setting_;
  std::string began_ = {};  ///< SQL of the moment that ages count back from
};

}  // namespace idem::postgres::detail
