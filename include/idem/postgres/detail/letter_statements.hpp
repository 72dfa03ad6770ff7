// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/dead_letter.hpp>
#include <idem/detail/text.hpp>
#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/outcome.hpp>
#include <idem/postgres/dead_letter.hpp>
#include <idem/postgres/detail/letter_rows.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// A letter on its way into the table; its texts are storable.
struct NewLetter {
  std::string_view tenant;
  std::string_view consumer;
  std::string_view event_id;
  const Fingerprint& fingerprint;
  const Failure& cause;
  std::uint32_t attempts = 0;
  std::int64_t delivery_count = 0;
  std::string ordering_key = {};
  std::optional<DeadLetterRecord::Time> occurred_at = {};
  std::optional<std::string> payload = {};
  PayloadKept kept = PayloadKept::none;
};

/// The SQL of dead letters.
class LetterStatements {
 public:
  explicit LetterStatements(const Upkeep& upkeep)
      : table_{upkeep.table("dead_letters")},
        attempts_{upkeep.table("attempts")},
        schema_{upkeep.options().schema},
        tenant_setting_{upkeep.options().tenant_setting} {}

  /// Inserts the letter, or adds it to its record. Repeated with the same token it does nothing, unless another
  /// recording came in between.
  [[nodiscard]] std::string record(const NewLetter& letter, const ClaimToken& token) const {
    const std::string cause = fmt::format("'{}', {}, {}", to_string(letter.cause.kind),
                                          text_value(letter.cause.code), text_value(letter.cause.message));
    return set_tenant(letter.tenant) +
           fmt::format(
               "INSERT INTO {} AS d (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code, "
               "first_message, last_kind, last_code, last_message, attempts, delivery_count, ordering_key, "
               "occurred_at, payload, payload_kept) VALUES ({}, {}, {}, {}, '{}', {}, {}, {}, {}, {}, {}, {}, '{}') "
               "ON CONFLICT (tenant, consumer, event_id, fingerprint) DO UPDATE SET recorded = d.recorded + 1, "
               "last_token = excluded.last_token, last_at = clock_timestamp(), last_kind = excluded.last_kind, "
               "last_code = excluded.last_code, last_message = excluded.last_message, "
               "attempts = excluded.attempts, delivery_count = excluded.delivery_count, "
               "ordering_key = excluded.ordering_key, "
               "occurred_at = COALESCE(excluded.occurred_at, d.occurred_at), "
               "payload = CASE WHEN {} THEN excluded.payload ELSE d.payload END, "
               "payload_kept = CASE WHEN {} THEN excluded.payload_kept ELSE d.payload_kept END, "
               "reopened = d.reopened + (d.closed_at IS NOT NULL)::int, "
               "closed_at = NULL, closed_as = NULL, closed_reason = NULL "
               "WHERE d.last_token <> excluded.last_token",
               table_, text_value(letter.tenant), text_value(letter.consumer), text_value(letter.event_id),
               bytes(letter.fingerprint.to_bytes()), hex_of(token), cause, cause, letter.attempts,
               letter.delivery_count, text_value(letter.ordering_key),
               letter.occurred_at ? timestamp(*letter.occurred_at) : "NULL",
               letter.payload
                   ? bytes(std::as_bytes(std::span{letter.payload->data(), letter.payload->size()}))
                   : "NULL",
               name_of(letter.kept), is_better, is_better);
  }

  [[nodiscard]] std::string list(const DeadLetterFilter& filter, std::size_t limit) const {
    return set_tenant(filter) + fmt::format("SELECT {} FROM {} WHERE {} ORDER BY id LIMIT {}", letter_columns,
                                            table_, where(filter), limit);
  }

  [[nodiscard]] std::string groups(const DeadLetterFilter& filter, std::size_t limit) const {
    return set_tenant(filter) +
           fmt::format(
               "SELECT consumer, last_kind, last_code, split_part(last_message, chr(10), 1) AS line, count(*), {}, "
               "{}, min(id) FROM {} WHERE {} GROUP BY consumer, last_kind, last_code, line "
               "ORDER BY count(*) DESC, min(id) LIMIT {}",
               micros("min(first_at)"), micros("max(last_at)"), table_, where(filter), limit);
  }

  [[nodiscard]] std::string payload(std::int64_t id) const {
    return fmt::format("SELECT encode(payload, 'hex') FROM {} WHERE id = {} AND payload IS NOT NULL", table_,
                       id);
  }

  /// The greatest id that there is: what dies later is none of a verb's that begins now.
  [[nodiscard]] std::string newest(const DeadLetterFilter& filter) const {
    return set_tenant(filter) + fmt::format("SELECT COALESCE(max(id), 0) FROM {}", table_);
  }

  /// The ids of the next open letters, oldest first.
  [[nodiscard]] std::string next(const DeadLetterFilter& filter, std::int64_t after, std::int64_t newest,
                                 std::size_t limit) const {
    return set_tenant(filter) +
           fmt::format("SELECT id FROM {} WHERE id > {} AND id <= {} AND {} ORDER BY id LIMIT {}", table_,
                       after, newest, where_open(filter), limit);
  }

  /// A letter with its original payload, if it is still open and still agrees. `lock`: FOR UPDATE SKIP LOCKED.
  [[nodiscard]] std::string read(std::int64_t id, const DeadLetterFilter& filter,
                                 std::string_view lock) const {
    return set_tenant(filter) +
           fmt::format(
               "SELECT {}, CASE payload_kept WHEN 'original' THEN encode(payload, 'hex') END FROM {} "
               "WHERE id = {} AND {} {}",
               letter_columns, table_, id, where_open(filter), lock);
  }

  /// Takes the starts that were counted of the letter's event back: an operator tries again.
  [[nodiscard]] std::string forget_starts(const StoredDeadLetter& letter) const {
    return set_tenant(letter.tenant) +
           fmt::format(
               "UPDATE {} SET starts = 0, failures = 0, open_starts = ARRAY[]::uuid[] "
               "WHERE tenant = {} AND consumer = {} AND event_id = {}",
               attempts_, text_value(letter.tenant), text_value(letter.consumer),
               text_value(letter.event_id));
  }

  /// Repeated with the same token, this and the next do nothing.
  [[nodiscard]] std::string redriven(const StoredDeadLetter& letter, const ClaimToken& token) const {
    return set_tenant(letter.tenant) +
           fmt::format(
               "UPDATE {} SET redrives = redrives + 1, verb_token = '{}', closed_at = clock_timestamp(), "
               "closed_as = 'redriven', closed_reason = NULL WHERE id = {} AND verb_token IS DISTINCT FROM '{}'",
               table_, hex_of(token), letter.id, hex_of(token));
  }
  [[nodiscard]] std::string failed_again(const StoredDeadLetter& letter, const Failure& cause,
                                         std::uint32_t attempts, const ClaimToken& token) const {
    return set_tenant(letter.tenant) +
           fmt::format(
               "UPDATE {} SET redrives = redrives + 1, verb_token = '{}', last_at = clock_timestamp(), "
               "last_kind = '{}', last_code = {}, last_message = {}, attempts = {} "
               "WHERE id = {} AND closed_at IS NULL AND verb_token IS DISTINCT FROM '{}'",
               table_, hex_of(token), to_string(cause.kind), text_value(cause.code),
               text_value(cause.message), attempts, letter.id, hex_of(token));
  }

  /// Closes those of the letters that are open, agree, and are nobody's at this moment; a row for each.
  /// Repeated with the same token, it answers the same.
  [[nodiscard]] std::string discard(const DeadLetterFilter& filter, std::span<const std::int64_t> ids,
                                    std::string_view reason, const ClaimToken& token) const {
    std::string list;
    for (const std::int64_t id : ids) list += fmt::format("{}{}", list.empty() ? "" : ", ", id);
    return set_tenant(filter) +
           fmt::format(
               "WITH due AS MATERIALIZED (SELECT id FROM {0} WHERE id IN ({1}) AND ({2} OR verb_token = '{3}') "
               "ORDER BY id FOR UPDATE SKIP LOCKED), "
               "idle AS MATERIALIZED (SELECT id FROM due WHERE {4}) "
               "UPDATE {0} d SET closed_at = clock_timestamp(), closed_as = 'discarded', closed_reason = {5}, "
               "verb_token = '{3}' FROM idle WHERE d.id = idle.id RETURNING d.id",
               table_, list, where_open(filter), hex_of(token), lock("id"), text_value(reason));
  }

  /// Takes the lock that a redrive holds on a letter, until the end of the transaction; answers false where
  /// somebody has it. `id`: a number, or a column.
  [[nodiscard]] std::string lock(std::string_view id) const {
    return fmt::format("pg_try_advisory_xact_lock(hashtextextended({} || '.' || {}, 1768186223::bigint))",
                       text_value(schema_), id);
  }

 private:
  /// An original payload stays: a redrive needs it, and would lose it to a sink that redacts.
  static constexpr std::string_view is_better =
      "d.payload_kept <> 'original' AND excluded.payload IS NOT NULL";

  [[nodiscard]] static std::string micros(std::string_view time) {
    return fmt::format("(EXTRACT(EPOCH FROM {}) * 1000000)::bigint", time);
  }

  [[nodiscard]] static std::string_view name_of(PayloadKept kept) noexcept {
    switch (kept) {
      case PayloadKept::original: return "original";
      case PayloadKept::redacted: return "redacted";
      case PayloadKept::none: break;
    }
    return "none";
  }

  [[nodiscard]] static std::string bytes(std::span<const std::byte> value) {
    std::string sql;
    append_bytea(sql, value);
    return sql;
  }

  /// Throws: std::invalid_argument — no text of the table can be like this.
  [[nodiscard]] static std::string sought(std::string_view part, std::string_view value) {
    if (value.find('\0') == std::string_view::npos && idem::detail::valid_utf8(value))
      return text_value(value);
    throw std::invalid_argument{
        fmt::format("DeadLetterFilter::{} is \"{}\": it is not UTF-8, or contains NUL", part,
                    idem::detail::escaped(value, 64))};
  }

  [[nodiscard]] static std::string where(const DeadLetterFilter& filter) {
    std::string sql = "true";
    const auto equals = [&](std::string_view column, std::string_view part, const auto& value) {
      if (value) sql += fmt::format(" AND {} = {}", column, sought(part, *value));
    };
    equals("tenant", "tenant", filter.tenant);
    equals("consumer", "consumer", filter.consumer);
    equals("event_id", "event_id", filter.event_id);
    equals("last_code", "code", filter.code);
    if (filter.kind) sql += fmt::format(" AND last_kind = '{}'", to_string(*filter.kind));
    if (filter.since) sql += fmt::format(" AND last_at >= {}", timestamp(*filter.since));
    if (filter.until) sql += fmt::format(" AND last_at < {}", timestamp(*filter.until));
    if (filter.state == LetterState::open) sql += " AND closed_at IS NULL";
    if (filter.state == LetterState::closed) sql += " AND closed_at IS NOT NULL";
    return sql;
  }
  [[nodiscard]] static std::string where_open(const DeadLetterFilter& filter) {
    return fmt::format("(closed_at IS NULL AND {})", where(filter));
  }

  [[nodiscard]] std::string set_tenant(std::string_view tenant) const {
    if (tenant_setting_.empty()) return {};
    return fmt::format("SELECT set_config({}, {}, true); ", text_value(tenant_setting_), text_value(tenant));
  }
  [[nodiscard]] std::string set_tenant(const DeadLetterFilter& filter) const {
    return filter.tenant ? set_tenant(std::string_view{*filter.tenant}) : std::string{};
  }

  std::string table_;
  std::string attempts_;
  std::string schema_;
  std::string tenant_setting_;
};

}  // namespace idem::postgres::detail
