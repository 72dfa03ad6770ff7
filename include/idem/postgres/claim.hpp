// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/exec.hpp>

namespace idem::postgres {

/// What `claim` found.
enum class Claimed {
  fresh,      ///< the key is this transaction's: do the work, and commit both
  duplicate,  ///< the event was handled before: do nothing
  mismatch    ///< the event id was used by a message that says something else
};

namespace detail {

/// The key as `enqueue` reads it in the same transaction: the parts in hexadecimal, between full stops.
[[nodiscard]] inline std::string claim_text(const Key& key) {
  std::string text;
  for (const std::string* part : {&key.tenant(), &key.consumer(), &key.event_id()}) {
    append_hex(text, std::as_bytes(std::span{part->data(), part->size()}));
    text += '.';
  }
  return text;
}

/// Leaves `claim_text` in the transaction, with no message enqueued yet: it goes with a savepoint that is
/// rolled back.
inline constexpr std::string_view leave_claim =
    "set_config('idem.claim', $6, true), set_config('idem.position', '0', true)";

}  // namespace detail

/// Claims an event within a transaction of the caller's own: for a service that keeps its transactions.
///
/// Waits for another transaction that holds the key (bounded by the session's lock_timeout). The transaction
/// stays usable after every answer; committing it, and looking whether that COMMIT took effect, is the
/// caller's. After `fresh`, `enqueue` publishes for this event, until the transaction claims another. `schema` is where `create_schema()` made the tables.
///
/// Throws: the driver's errors (40001 for a lost race at a stricter isolation level); TransientError — a
/// consumer of that name holds a lease on the event; ConfigurationError — a row that row security hides holds
/// the key.
[[nodiscard]] inline Claimed claim(pqxx::dbtransaction& tx, const Key& key, const Fingerprint& fingerprint,
                                   std::string_view schema = "idem") {
  // As bytes: the caller's connection may speak another encoding, and an id must not change with it.
  const auto bytes = [](const std::string& text) {
    return std::as_bytes(std::span{text.data(), text.size()});
  };
  const std::string keys = detail::identifier(schema) + ".keys";
  const std::string insert = fmt::format(
      "INSERT INTO {} (tenant, consumer, event_id, claim_token, fingerprint) "
      "VALUES (pg_catalog.convert_from($1, 'UTF8'), pg_catalog.convert_from($2, 'UTF8'), pg_catalog.convert_from($3, 'UTF8'), $4, $5) "
      "ON CONFLICT (tenant, consumer, event_id) DO NOTHING RETURNING {}",
      keys, detail::leave_claim);
  const std::string where =
      "tenant = pg_catalog.convert_from($1, 'UTF8') AND consumer = pg_catalog.convert_from($2, 'UTF8') AND event_id = pg_catalog.convert_from($3, 'UTF8')";
  const std::string find = fmt::format(
      "SELECT encode(fingerprint, 'hex'), {}, committed_at IS NULL, set_config('idem.claim', '', true) "
      "FROM {} WHERE {}",
      detail::is_free, keys, where);
  const std::string take_over = fmt::format(
      "UPDATE {} SET claim_token = $4, fingerprint = $5, value = NULL, committed_at = clock_timestamp(), "
      "window_ends = NULL, generation = generation + (committed_at IS NOT NULL)::int, leased_until = NULL "
      "WHERE {} AND {} RETURNING {}",
      keys, where, detail::is_free, detail::leave_claim);
  std::optional<std::vector<std::byte>> stored_form;
  if (fingerprint.given()) stored_form = fingerprint.to_bytes();

  for (int round = 0; round < detail::patience;
       ++round) {  // a row may go between two statements, but not for ever
    const auto run = [&](const std::string& sql) {
      return exec(tx, sql, bytes(key.tenant()), bytes(key.consumer()), bytes(key.event_id()),
                  detail::hex_of(detail::random_token()), stored_form, detail::claim_text(key));
    };
    if (run(insert).affected_rows() == 1) return Claimed::fresh;
    const auto rows = exec(tx, find, bytes(key.tenant()), bytes(key.consumer()), bytes(key.event_id()));
    if (rows.empty()) continue;
    const auto row = rows[0];
    if (std::string_view{row[1].c_str()} == "t") {
      if (run(take_over).affected_rows() == 1) return Claimed::fresh;
      continue;
    }
    if (std::string_view{row[2].c_str()} == "t")
      throw TransientError{
          fmt::format("the key {} is held by a live lease: come back later", key.to_string())};
    if (row[0].is_null()) return Claimed::duplicate;
    const std::string found = detail::bytes_of_hex(row[0].c_str());
    const auto committed = Fingerprint::from_bytes(std::as_bytes(std::span{found}));
    return comparable(committed, fingerprint) && committed != fingerprint ? Claimed::mismatch
                                                                          : Claimed::duplicate;
  }
  throw ConfigurationError{detail::explain_hidden_row(schema, key)};
}

}  // namespace idem::postgres
