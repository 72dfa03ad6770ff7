// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/detail/text.hpp>
#include <idem/duration.hpp>
#include <idem/postgres/detail/outbox_channel.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/postgres/store.hpp>

namespace idem::postgres {

/// What a message of the outbox that is not sent waits for.
enum class OutboxState {
  waiting,  ///< due: for a relay, or for those of its key before it
  parked,   ///< its time: it was delayed, or failed and is to be tried again
  sending,  ///< a relay has claimed it
  dead      ///< an operator: it was given up
};

[[nodiscard]] constexpr std::string_view to_string(OutboxState state) noexcept {
  switch (state) {
    case OutboxState::waiting: return "waiting";
    case OutboxState::parked: return "parked";
    case OutboxState::sending: return "sending";
    case OutboxState::dead: return "dead";
  }
  return "unknown";
}

/// Which messages: those that agree with everything that is set.
struct OutboxFilter {
  std::optional<OutboxState> state = {};
  std::optional<std::string> topic = {};
  std::optional<std::string> tenant = {};
  std::optional<std::string> key = {};
  std::optional<std::string> id = {};
};

/// A message that is not sent, without what it says. Times are by the server's clock.
struct OutboxEntry {
  using Time = std::chrono::system_clock::time_point;

  std::int64_t seq = 0;  ///< the order of insertion
  OutboxState state = OutboxState::waiting;
  std::string id = {};
  std::string topic = {};
  std::string key = {};
  std::string tenant = {};
  std::string consumer = {};
  std::string event_id = {};
  std::uint32_t attempts = 0;   ///< that failed
  std::string last_error = {};  ///< empty: none failed
  Time enqueued_at = {};
  Time due_at = {};
  std::optional<Time> dead_at = {};
};

/// The operator's view of the outbox: what is stuck and why, and the way back for it.
///
/// It has one connection of its own. Under row security its role must see every row.
///
/// Thread safety: any number of threads, one at a time.
class Outbox {
 public:
  /// The store outlives it.
  explicit Outbox(const PostgresStore& store) : upkeep_{store} {}

  /// The messages that are not sent, oldest first, at most `limit`.
  ///
  /// Throws: std::invalid_argument — the filter holds what no message can; TransientError — the server cannot be
  /// reached; ConfigurationError — the schema or a right is missing.
  [[nodiscard]] std::vector<OutboxEntry> list(const OutboxFilter& filter = {}, std::size_t limit = 100) {
    const pqxx::result rows = upkeep_.ask(fmt::format(
        "SELECT seq, {state}, id, topic, key, tenant, consumer, event_id, attempts, COALESCE(last_error, ''), "
        "{enqueued}, {due}, {dead} FROM {outbox} WHERE {matches} ORDER BY seq LIMIT {limit}",
        fmt::arg("state", state_sql), fmt::arg("enqueued", microseconds("enqueued_at")),
        fmt::arg("due", microseconds("due_at")), fmt::arg("dead", microseconds("dead_at")),
        fmt::arg("outbox", upkeep_.table("outbox")), fmt::arg("matches", matches(filter)),
        fmt::arg("limit", std::min<std::size_t>(limit, 1'000'000))));
    std::vector<OutboxEntry> entries;
    for (pqxx::result::size_type i = 0; i < rows.size(); ++i) {
      const auto row = rows[i];
      OutboxEntry entry{.seq = row[0].as<std::int64_t>(),
                        .state = static_cast<OutboxState>(row[1].as<int>()),
                        .id = row[2].c_str(),
                        .topic = row[3].c_str(),
                        .key = row[4].c_str(),
                        .tenant = row[5].c_str(),
                        .consumer = row[6].c_str(),
                        .event_id = row[7].c_str(),
                        .attempts = row[8].as<std::uint32_t>(),
                        .last_error = row[9].c_str(),
                        .enqueued_at = time_of(row[10].as<std::int64_t>()),
                        .due_at = time_of(row[11].as<std::int64_t>())};
      if (!row[12].is_null()) entry.dead_at = time_of(row[12].as<std::int64_t>());
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  /// Makes dead messages wait again, as if they had never failed, and parked ones due now; returns how many. A
  /// dead message whose key went on without it is then sent after those.
  ///
  /// Throws: std::invalid_argument — the filter is empty, or asks for messages that wait or are being sent; else
  /// as `list`. What was changed before an error stays changed; where an answer was lost, the number may be too
  /// low.
  std::uint64_t retry(const OutboxFilter& filter) {
    if (!filter.state && !filter.topic && !filter.tenant && !filter.key && !filter.id)
      throw std::invalid_argument{
          "Outbox::retry: the filter is empty; for all dead messages, say so: {.state = OutboxState::dead}"};
    if (filter.state == OutboxState::waiting || filter.state == OutboxState::sending)
      throw std::invalid_argument{fmt::format("Outbox::retry: messages that are {} are on their way already",
                                              to_string(*filter.state))};
    std::uint64_t retried = 0;
    std::int64_t after = 0;
    while (true) {
      const pqxx::result rows = upkeep_.ask(fmt::format(
          "WITH chosen AS MATERIALIZED (SELECT seq FROM {outbox} WHERE seq > {after} AND {state} IN (1, 3) AND "
          "{matches} ORDER BY seq LIMIT {page} FOR UPDATE), "
          "back AS (UPDATE {outbox} SET attempts = CASE WHEN dead_at IS NULL THEN attempts ELSE 0 END, "
          "due_at = clock_timestamp(), dead_at = NULL WHERE seq = ANY (ARRAY(SELECT seq FROM chosen)) RETURNING seq) "
          "SELECT count(*), max(seq), CASE WHEN count(*) > 0 THEN pg_notify({channel}, '')::text END FROM back",
          fmt::arg("outbox", upkeep_.table("outbox")), fmt::arg("after", after), fmt::arg("state", state_sql),
          fmt::arg("matches", matches(filter)), fmt::arg("page", page),
          fmt::arg("channel", detail::literal(detail::outbox_channel(upkeep_.options().schema)))));
      const auto count = rows[0][0].template as<std::uint64_t>();
      retried += count;
      if (count < page) return retried;
      after = rows[0][1].template as<std::int64_t>();
    }
  }

 private:
  static constexpr std::uint64_t page = 1'000;

  /// As the enumerators are numbered.
  static constexpr std::string_view state_sql =
      "(CASE WHEN dead_at IS NOT NULL THEN 3 WHEN COALESCE(claimed_until > clock_timestamp(), false) THEN 2 "
      "WHEN due_at > clock_timestamp() THEN 1 ELSE 0 END)";

  [[nodiscard]] static std::string microseconds(std::string_view column) {
    return fmt::format("floor(EXTRACT(EPOCH FROM {}) * 1000000)::bigint", column);
  }
  [[nodiscard]] static OutboxEntry::Time time_of(std::int64_t microseconds) {
    return OutboxEntry::Time{
        std::chrono::duration_cast<OutboxEntry::Time::duration>(std::chrono::microseconds{microseconds})};
  }

  [[nodiscard]] static std::string matches(const OutboxFilter& filter) {
    std::string sql = "sent_at IS NULL";
    const auto demand = [&sql](std::string_view column, const std::optional<std::string>& value) {
      if (!value) return;
      if (value->find('\0') != std::string::npos || !idem::detail::valid_utf8(*value))
        throw std::invalid_argument{fmt::format("OutboxFilter::{} \"{}\" is no text that a message can hold",
                                                column, idem::detail::escaped(*value, 80))};
      sql += fmt::format(" AND {} = {}", column, detail::text_value(*value));
    };
    if (filter.state == OutboxState::dead) sql += " AND dead_at IS NOT NULL";
    if (filter.state) sql += fmt::format(" AND {} = {}", state_sql, static_cast<int>(*filter.state));
    demand("topic", filter.topic);
    demand("tenant", filter.tenant);
    demand("key", filter.key);
    demand("id", filter.id);
    return sql;
  }

  detail::Upkeep upkeep_;
};

}  // namespace idem::postgres
