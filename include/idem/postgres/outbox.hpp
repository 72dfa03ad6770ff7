// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/detail/publishing.hpp>
#include <idem/error.hpp>
#include <idem/outbox.hpp>
#include <idem/postgres/detail/outbox_channel.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/exec.hpp>
#include <idem/postgres/transaction.hpp>

namespace idem::postgres {

namespace detail {

/// Where a statement finds the event: SQL for one row of tenant, consumer, event id and position, and SQL that
/// moves the position on.
struct EventSource {
  std::string_view row;
  std::string_view move_on;
};

inline constexpr EventSource event_given{
    "SELECT pg_catalog.convert_from($6, 'UTF8') AS t, pg_catalog.convert_from($7, 'UTF8') AS c, pg_catalog.convert_from($8, 'UTF8') AS e, "
    "$9::bigint AS n",
    "NULL"};

/// As `claim` left it in the transaction; no row: it did not.
inline constexpr EventSource event_claimed{
    "SELECT pg_catalog.convert_from(decode(split_part(s, '.', 1), 'hex'), 'UTF8') AS t, "
    "pg_catalog.convert_from(decode(split_part(s, '.', 2), 'hex'), 'UTF8') AS c, "
    "pg_catalog.convert_from(decode(split_part(s, '.', 3), 'hex'), 'UTF8') AS e, "
    "current_setting('idem.position')::bigint AS n "
    "FROM (SELECT current_setting('idem.claim', true) AS s) AS left_by_claim WHERE s <> ''",
    "set_config('idem.position', (n + 1)::text, true)"};

/// Inserts a message of an event. Its one row: how many rows of keys the event has, and the message's id: NULL
/// when it is not stored, empty when it was given.
///
/// All text goes as bytes: the connection may speak another encoding than UTF8. The id is `derived_id`. The rows
/// are counted by a plain look, as two may be seen: ours, and one that was purged after a snapshot. A join would
/// stop at the first, the key being unique.
[[nodiscard]] inline std::string enqueue_sql(std::string_view schema, const EventSource& event) {
  const auto sized = [](std::string_view column) {
    return fmt::format(
        "'s'::bytea || int8send(octet_length(pg_catalog.convert_to({0}, 'UTF8'))) || pg_catalog.convert_to({0}, 'UTF8')",
        column);
  };
  return fmt::format(
      "WITH event AS MATERIALIZED ({event}), "
      "held AS (SELECT count(*) AS found, max(generation) AS generation FROM {schema}.keys "
      "WHERE tenant = (SELECT t FROM event) AND consumer = (SELECT c FROM event) AND event_id = (SELECT e FROM event)), "
      "queued AS (INSERT INTO {schema}.outbox (id, tenant, consumer, event_id, topic, key, payload, headers) "
      "SELECT COALESCE(pg_catalog.convert_from($5::bytea, 'UTF8'), left(encode(sha256({tenant} || {consumer} || {id} || "
      "int8send(generation) || int8send(purges) || int8send(n)), 'hex'), 32)), t, c, e, "
      "pg_catalog.convert_from($1, 'UTF8'), pg_catalog.convert_from($2, 'UTF8'), $3::bytea, pg_catalog.convert_from($4, 'UTF8')::text[] "
      "FROM event, held, {schema}.schema_info WHERE found = 1 OR e = '' "
      "ON CONFLICT (tenant, id) DO NOTHING RETURNING id) "
      "SELECT found, CASE WHEN id IS NULL THEN NULL WHEN $5::bytea IS NULL THEN id ELSE '' END, "
      "CASE WHEN id IS NOT NULL THEN pg_notify({channel}, '')::text END, "
      "CASE WHEN id IS NOT NULL THEN {move_on} END "
      "FROM held LEFT JOIN event ON true LEFT JOIN queued ON true",
      fmt::arg("event", event.row), fmt::arg("move_on", event.move_on),
      fmt::arg("schema", identifier(schema)), fmt::arg("tenant", sized("t")),
      fmt::arg("consumer", sized("c")), fmt::arg("id", sized("e")),
      fmt::arg("channel", literal(outbox_channel(schema))));
}

/// Names and values in turn, as the text of an array.
[[nodiscard]] inline std::string headers_text(const OutboxMessage& message) {
  std::string text = "{";
  const auto append = [&](std::string_view element) {
    if (text.size() > 1) text += ',';
    text += '"';
    for (const char c : element) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  };
  for (const auto& [name, value] : message.headers) {
    append(name);
    append(value);
  }
  return text += '}';
}

[[nodiscard]] inline std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

[[nodiscard]] inline std::optional<std::span<const std::byte>> id_given(const OutboxMessage& message) {
  if (message.id.empty()) return std::nullopt;
  return bytes_in(message.id);
}

inline constexpr const char* in_subtransaction =
    "enqueue was called on a subtransaction that knows of no open claim: in a handler, enqueue with the handler's own Transaction before or after the subtransaction; elsewhere, after postgres::claim answered fresh";

/// Names what kept a message of an open claim out of the outbox. `found`: as `enqueue_sql` says.
[[noreturn]] inline void refuse_message(std::string_view found, const OutboxMessage& message) {
  if (found == "0" || found == "1") {
    if (!message.id.empty()) throw PermanentError{idem::detail::explain_taken_id(message.id)};
    throw TransientError{
        "enqueue: the id derived for this message is taken: its event ran before, and its key was removed by hand; add 1 to schema_info.purges"};
  }
  throw TransientError{
      "enqueue: the event's key was removed after this transaction began: only a new one can tell the message's id"};
}

}  // namespace detail

/// Stores a message that is sent if, and only if, the handler's effect is committed; returns its id. One round
/// trip.
///
/// In a handler of many events (a bulk handler) the message is no single event's: give it an id.
///
/// Throws: PermanentError — the message breaks a rule of OutboxMessage, its id is taken, or no handler is at
/// work; nothing is stored then, and the transaction stays usable. TransientError — the id cannot be told in
/// this transaction. The driver's errors, which a handler lets out.
inline std::string enqueue(Transaction& tx, const OutboxMessage& message) {
  idem::detail::check_outbox_message(message);
  const idem::detail::Publishing work = tx.publishing();
  idem::detail::check_publishing(work, message);
  const pqxx::result rows =
      exec(tx, detail::enqueue_sql(tx.schema_, detail::event_given), detail::bytes_in(message.topic),
           detail::bytes_in(message.key), detail::bytes_in(message.payload),
           detail::bytes_in(detail::headers_text(message)), detail::id_given(message),
           detail::bytes_in(work.tenant), detail::bytes_in(work.consumer), detail::bytes_in(work.event_id),
           work.position);
  const auto answer = rows[0];
  if (answer[1].is_null()) {
    const std::string_view found = answer[0].c_str();
    if (found == "0" && !work.event_id.empty()) idem::detail::check_publishing({}, message);
    detail::refuse_message(found, message);
  }
  ++tx.publishing_.position;
  return message.id.empty() ? std::string{answer[1].c_str()} : message.id;
}

/// As above, in a transaction of the caller's own in which `claim` answered fresh, for the event of the last
/// such answer.
///
/// `schema`: as given to `claim`. A subtransaction that is abandoned takes back what was enqueued in it.
inline std::string enqueue(pqxx::transaction_base& tx, const OutboxMessage& message,
                           std::string_view schema = "idem") {
  if (auto* const handlers = dynamic_cast<Transaction*>(&tx)) return enqueue(*handlers, message);
  idem::detail::check_outbox_message(message);
  const pqxx::result rows =
      exec(tx, detail::enqueue_sql(schema, detail::event_claimed), detail::bytes_in(message.topic),
           detail::bytes_in(message.key), detail::bytes_in(message.payload),
           detail::bytes_in(detail::headers_text(message)), detail::id_given(message));
  const auto answer = rows[0];
  if (answer[1].is_null()) {
    const std::string_view found = answer[0].c_str();
    if (found == "0") {
      if (dynamic_cast<pqxx::subtransaction*>(&tx) != nullptr)
        throw PermanentError{detail::in_subtransaction};
      idem::detail::check_publishing({}, message);
    }
    detail::refuse_message(found, message);
  }
  return message.id.empty() ? std::string{answer[1].c_str()} : message.id;
}

}  // namespace idem::postgres
