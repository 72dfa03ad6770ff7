// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/key.hpp>
#include <idem/postgres/detail/prepared_texts.hpp>
#include <idem/postgres/detail/session.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/options.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// How our statements are spelled: as prepared ones, or in full (a transaction pooler breaks the former).
enum class Spelling { prepared, in_full };

/// What the guard's error text holds when the transaction is no longer the one that made the claim.
inline constexpr std::string_view ended_mark = "idem_transaction_ended_by_handler";

/// The SQL of one store: every message it sends, with the schema's name and the options worked in.
///
/// A message is one simple query of several statements: one round trip, and the answer is its last one's.
class Statements {
 public:
  explicit Statements(const PostgresOptions& options)
      : keys_{identifier(options.schema) + ".keys"},
        attempts_{identifier(options.schema) + ".attempts"},
        fences_{literal(identifier(options.schema) + ".fences") + "::regclass"},
        begin_{begin(options.isolation)},
        tenant_setting_{options.tenant_setting.empty() ? std::string{} : literal(options.tenant_setting)} {
    const std::string claim = claim_sql({.tenant = "$1",
                                         .consumer = "$2",
                                         .event_id = "$3",
                                         .token = "$4",
                                         .fingerprint = "$5",
                                         .own_timeout = "$6"});
    const std::string guard = guard_sql("$1");
    const std::string find = find_sql("tenant = $1 AND consumer = $2 AND event_id = $3");
    // A pooler hands one server session to many clients: the name must tell whose statement it is.
    claim_name_ = name_of("claim", claim);
    guard_name_ = name_of("guard", guard);
    find_name_ = name_of("find", find);
    prepare_ = fmt::format(
        "PREPARE {} (text, text, text, uuid, bytea, text) AS {}; PREPARE {} (xid8) AS {}; PREPARE {} (text, text, text) AS {}",
        claim_name_, claim, guard_name_, guard, find_name_, find);
  }

  [[nodiscard]] const std::string& guard_name() const noexcept { return guard_name_; }
  [[nodiscard]] const std::string& prepare() const noexcept { return prepare_; }

  /// Opens a transaction and claims the key, waiting at most `wait` for another claimer. A row says that the
  /// key is ours: the transaction's id, the handler's own lock_timeout, and whether the event is too old for
  /// it.
  [[nodiscard]] std::string claim(const Claim& claim, const ClaimToken& token, Duration wait,
                                  const Session& session, Spelling spelling) const {
    const ClaimTexts texts = texts_of(claim, token, session);
    std::string sql = open(claim.key, wait);
    if (spelling == Spelling::in_full || claim.window) return sql + claim_sql(texts);
    return sql + fmt::format("EXECUTE {} ({}, {}, {}, {}, {}, {})", claim_name_, texts.tenant, texts.consumer,
                             texts.event_id, texts.token, texts.fingerprint, texts.own_timeout);
  }

  /// As `claim`, for a key whose row is free again: its window, or its lease, has ended. No row: it is not,
  /// any more.
  [[nodiscard]] std::string take_over(const Claim& claim, const ClaimToken& token, Duration wait,
                                      const Session& session) const {
    const ClaimTexts texts = texts_of(claim, token, session);
    return open(claim.key, wait) +
           fmt::format(
               "UPDATE {} SET claim_token = {}, fingerprint = {}, value = NULL, "
               "committed_at = clock_timestamp(), window_ends = clock_timestamp() + {}, "
               "generation = generation + (committed_at IS NOT NULL)::int, leased_until = NULL WHERE {} AND {} RETURNING {}",
               keys_, texts.token, texts.fingerprint, texts.window, where(claim.key), is_free,
               claim_answer(texts));
  }

  /// Leaves the transaction and reads the row that holds the key: token, fingerprint, value, whether it is
  /// free again, whether it is only leased, and for how many more microseconds.
  [[nodiscard]] std::string find(const Key& key, Spelling spelling) const {
    return "ROLLBACK; " + look(key, spelling);
  }

  /// As `find`, outside of a transaction.
  [[nodiscard]] std::string look(const Key& key, Spelling spelling) const {
    std::string sql;
    append_tenant(sql, key);
    if (spelling == Spelling::in_full) return sql + find_sql(where(key));
    return sql + fmt::format("EXECUTE {} ({}, {}, {})", find_name_, text_value(key.tenant()),
                             text_value(key.consumer()), text_value(key.event_id()));
  }

  /// Opens a transaction and claims the keys that no row holds and whose events are young enough, in the
  /// order of `claims`, waiting at most `wait` in all. One row: the transaction's id, the tokens of the
  /// claims that are ours (joined by commas; NULL: none), and the handler's own lock_timeout, put back after
  /// the last wait.
  [[nodiscard]] std::string claim_batch(std::span<const Claim* const> claims,
                                        std::span<const ClaimToken> tokens, Duration wait,
                                        const Session& session) const {
    std::string values;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      const ClaimTexts texts = texts_of(*claims[i], tokens[i], session);
      values += fmt::format("{}({}, {}, {}, {}::uuid, {}::bytea, {}, {})", i == 0 ? "" : ", ", texts.tenant,
                            texts.consumer, texts.event_id, texts.token, texts.fingerprint, texts.window,
                            too_old(texts));
    }
    const auto each = wait / static_cast<std::int64_t>(claims.size());
    return open(claims.front()->key, each) +
           fmt::format(
               "WITH ours AS (INSERT INTO {} (tenant, consumer, event_id, claim_token, fingerprint, window_ends) "
               "SELECT t, c, e, token, f, clock_timestamp() + w FROM (VALUES {}) AS v (t, c, e, token, f, w, old) "
               "WHERE NOT old ON CONFLICT (tenant, consumer, event_id) DO NOTHING RETURNING claim_token) "
               "SELECT pg_current_xact_id_if_assigned(), string_agg(claim_token::text, ','), "
               "set_config('lock_timeout', {}, true) FROM ours",
               keys_, values, literal(session.lock_timeout));
  }

  /// Reads the rows that hold keys, as `find`, each with its place among the claims; within the transaction.
  [[nodiscard]] std::string find_batch(std::span<const Claim> claims,
                                       std::span<const std::size_t> places) const {
    std::string values;
    for (const std::size_t place : places) {
      const Key& key = claims[place].key;
      values += fmt::format("{}({}, {}, {}, {})", values.empty() ? "" : ", ", place, text_value(key.tenant()),
                            text_value(key.consumer()), text_value(key.event_id()));
    }
    return fmt::format(
        "SELECT claim_token, encode(fingerprint, 'hex'), encode(value, 'hex'), {}, committed_at IS NULL, "
        "{}, place FROM {} JOIN (VALUES {}) AS v (place, t, c, e) ON (tenant, consumer, event_id) = (t, c, e)",
        is_free, lease_rest, keys_, values);
  }

  /// As `commit`, with the values of a batch: `values[n]` belongs to the claim at `places[n]`.
  [[nodiscard]] std::string commit_batch(std::string_view xid, std::span<const Claim> claims,
                                         std::span<const std::size_t> places,
                                         std::span<const StoredValue> values, Spelling spelling) const {
    std::string rows;
    for (std::size_t n = 0; n < places.size(); ++n) {
      if (!values[n]) continue;
      const Key& key = claims[places[n]].key;
      rows += fmt::format("{}({}, {}, {}, ", rows.empty() ? "" : ", ", text_value(key.tenant()),
                          text_value(key.consumer()), text_value(key.event_id()));
      append_bytea(rows, std::as_bytes(std::span{values[n]->data(), values[n]->size()}));
      rows += ')';
    }
    std::string sql = guard(xid, spelling);
    if (!rows.empty())
      sql += fmt::format(
          "; UPDATE {} SET value = v.r FROM (VALUES {}) AS v (t, c, e, r) "
          "WHERE (tenant, consumer, event_id) = (t, c, e)",
          keys_, rows);
    return sql + "; COMMIT";
  }

  /// Takes a key that no row holds, for a lease: a row with the fencing token says that it is ours.
  [[nodiscard]] std::string acquire(const Claim& claim, const ClaimToken& token,
                                    std::optional<Duration> lease, Duration wait) const {
    const ClaimTexts texts = texts_of(claim, token, {});
    return settings(claim.key, wait) +
           fmt::format(
               "INSERT INTO {0} (tenant, consumer, event_id, claim_token, fingerprint, committed_at, "
               "leased_until, fence) SELECT {1}, {2}, {3}, {4}, {5}, NULL, clock_timestamp() + {6}, "
               "nextval({7}) WHERE NOT {8} ON CONFLICT (tenant, consumer, event_id) DO NOTHING "
               "RETURNING fence",
               keys_, texts.tenant, texts.consumer, texts.event_id, texts.token, texts.fingerprint,
               interval_or_null(lease), fences_, too_old(texts));
  }

  /// Takes a key whose row is free again, for a lease, and tells what holds it now: as `find`, with the
  /// fencing token and whether the event is too old. Every column is NULL but the last where there is no row.
  [[nodiscard]] std::string acquire_free(const Claim& claim, const ClaimToken& token,
                                         std::optional<Duration> lease, Duration wait) const {
    const ClaimTexts texts = texts_of(claim, token, {});
    return settings(claim.key, wait) +
           fmt::format(
               "UPDATE {0} SET claim_token = {1}, fingerprint = {2}, value = NULL, window_ends = NULL, "
               "generation = generation + (committed_at IS NOT NULL)::int, committed_at = NULL, "
               "leased_until = clock_timestamp() + {3}, fence = nextval({4}) WHERE {5} AND {6} AND NOT {7}; "
               "SELECT claim_token, encode(fingerprint, 'hex'), encode(value, 'hex'), {6}, committed_at IS NULL, {8}, fence, {7} "
               "FROM (SELECT 1) one LEFT JOIN {0} ON {5}",
               keys_, texts.token, texts.fingerprint, interval_or_null(lease), fences_, where(claim.key),
               is_free, too_old(texts), lease_rest);
  }

  /// Moves the end of a lease that has one; a row says that it is still this grant's.
  [[nodiscard]] std::string extend(const Claim& claim, const Grant& grant, Duration length) const {
    return move_end(
        claim, grant,
        fmt::format("CASE WHEN leased_until IS NOT NULL THEN clock_timestamp() + {} END", interval(length)));
  }

  /// Ends a lease now; a row as above.
  [[nodiscard]] std::string release(const Claim& claim, const Grant& grant) const {
    return move_end(claim, grant, "clock_timestamp()");
  }

  /// Records the effect of a lease; a row says that it is recorded, now or before.
  [[nodiscard]] std::string complete(const Claim& claim, const Grant& grant, const StoredValue& value) const {
    std::string bytes = "NULL";
    if (value) {
      bytes.clear();
      append_bytea(bytes, std::as_bytes(std::span{value->data(), value->size()}));
    }
    const std::string ours = where(claim.key, grant);
    return settings(claim.key, claim.wait_limit) +
           fmt::format(
               "UPDATE {0} SET committed_at = clock_timestamp(), leased_until = NULL, value = {1}, "
               "window_ends = clock_timestamp() + {2} WHERE {3} AND {4}; "
               "SELECT fence FROM {0} WHERE {3} AND committed_at IS NOT NULL",
               keys_, bytes, interval_or_null(claim.window), ours, still_leased);
  }

  /// Counts a start; the row tells how many there were before. Counted once, however often it is sent.
  [[nodiscard]] std::string start(const Claim& claim, const ClaimToken& token) const {
    const std::string_view afresh = "a.times_done <> excluded.times_done";  // and its window ended
    const std::string_view again = "a.open_starts OPERATOR(pg_catalog.@>) excluded.open_starts";
    return settings(claim.key, claim.wait_limit) +
           fmt::format(
               "INSERT INTO {0} AS a (tenant, consumer, event_id, starts, open_starts, times_done) VALUES ({1}, {2}, "
               "{3}, 1, ARRAY['{4}']::uuid[], COALESCE((SELECT generation - (committed_at IS NULL)::int FROM {5} WHERE {6}), 0)) "
               "ON CONFLICT (tenant, consumer, event_id) DO UPDATE SET "
               "starts = CASE WHEN {7} THEN 1 WHEN {8} THEN a.starts ELSE a.starts + 1 END, "
               "failures = CASE WHEN {7} THEN 0 ELSE a.failures END, "
               "open_starts = CASE WHEN {7} THEN excluded.open_starts WHEN {8} THEN a.open_starts "
               "ELSE (excluded.open_starts OPERATOR(pg_catalog.||) a.open_starts)[1:16] END, "
               "times_done = excluded.times_done, started_at = clock_timestamp() RETURNING starts - 1",
               attempts_, text_value(claim.key.tenant()), text_value(claim.key.consumer()),
               text_value(claim.key.event_id()), hex_of(token), keys_, where(claim.key), afresh, again);
  }

  /// Ends a counted start; no row: it has ended.
  [[nodiscard]] std::string end(const Claim& claim, const Start& start, StartEnd how) const {
    return settings(claim.key, claim.wait_limit) +
           fmt::format(
               "UPDATE {} SET {}, open_starts = pg_catalog.array_remove(open_starts, '{}') WHERE {} "
               "AND '{}' = ANY (open_starts) RETURNING starts",
               attempts_, how == StartEnd::failed ? "failures = failures + 1" : "starts = starts - 1",
               hex_of(start.token), where(claim.key), hex_of(start.token));
  }

  /// Commits, if the transaction is still the one that made the claim and nothing in it has failed.
  [[nodiscard]] std::string commit(std::string_view xid, const Key& key, const StoredValue& value,
                                   Spelling spelling) const {
    std::string sql = guard(xid, spelling);
    if (value) {
      sql += fmt::format("; UPDATE {} SET value = ", keys_);
      append_bytea(sql, std::as_bytes(std::span{value->data(), value->size()}));
      sql += fmt::format(" WHERE {}", where(key));
    }
    return sql + "; COMMIT";
  }

  /// Rolls back a transaction in which nothing has failed, and fails if it is not ours any more.
  [[nodiscard]] std::string roll_back(std::string_view xid, Spelling spelling) const {
    return guard(xid, spelling) + "; ROLLBACK";
  }

  /// Rolls back a failed transaction, where no query can be asked: AND CHAIN fails outside of one (25P01),
  /// and the answer tells what became of the claim's transaction. A handler that rolled back, began again and
  /// failed in that transaction is not told apart.
  [[nodiscard]] static std::string roll_back_failed(std::string_view xid) {
    return fmt::format("ROLLBACK AND CHAIN; ROLLBACK; SELECT pg_xact_status('{}'::xid8)", xid);
  }

  /// Opens a transaction whose waits for a lock end after `wait`.
  [[nodiscard]] std::string open(const Key& key, Duration wait) const { return begin_ + settings(key, wait); }

  /// A query that fails with `ended_mark` in its text unless the condition holds: it looks for a table of
  /// that name (by way of text, or the planner would look for it beforehand).
  [[nodiscard]] static std::string or_fail(std::string_view condition) {
    return fmt::format("CASE WHEN {} THEN NULL ELSE '{}'::text::regclass END", condition, ended_mark);
  }

 private:
  [[nodiscard]] static std::string begin(Isolation isolation) {
    std::string_view level = "READ COMMITTED";
    if (isolation == Isolation::repeatable_read) level = "REPEATABLE READ";
    if (isolation == Isolation::serializable) level = "SERIALIZABLE";
    return fmt::format("BEGIN ISOLATION LEVEL {}; ", level);
  }

  /// The parts of a claim, each an SQL expression.
  struct ClaimTexts {
    std::string tenant, consumer, event_id, token, fingerprint, own_timeout;
    std::string window = {};    ///< an interval; NULL where the claim has none and the text is needed
    std::string occurred = {};  ///< a timestamp; NULL as above
  };

  [[nodiscard]] static ClaimTexts texts_of(const Claim& claim, const ClaimToken& token,
                                           const Session& session) {
    ClaimTexts texts{.tenant = text_value(claim.key.tenant()),
                     .consumer = text_value(claim.key.consumer()),
                     .event_id = text_value(claim.key.event_id()),
                     .token = '\'' + hex_of(token) + '\'',
                     .fingerprint = bytea_or_null(claim.fingerprint),
                     .own_timeout = literal(session.lock_timeout),
                     .window = "NULL::interval",
                     .occurred = "NULL::timestamptz"};
    if (claim.window) texts.window = interval(*claim.window);
    if (claim.occurred_at) texts.occurred = timestamp(*claim.occurred_at);
    return texts;
  }

  [[nodiscard]] std::string claim_sql(const ClaimTexts& texts) const {
    const bool windowed = !texts.window.empty() && texts.window != "NULL::interval";
    return fmt::format(
        "INSERT INTO {} (tenant, consumer, event_id, claim_token, fingerprint{}) VALUES ({}, {}, {}, {}, "
        "{}{}) ON CONFLICT (tenant, consumer, event_id) DO NOTHING RETURNING {}",
        keys_, windowed ? ", window_ends" : "", texts.tenant, texts.consumer, texts.event_id, texts.token,
        texts.fingerprint, windowed ? ", clock_timestamp() + " + texts.window : "", claim_answer(texts));
  }

  [[nodiscard]] static std::string claim_answer(const ClaimTexts& texts) {
    std::string answer =
        fmt::format("pg_current_xact_id(), set_config('lock_timeout', {}, true)", texts.own_timeout);
    if (!texts.window.empty()) answer += ", " + too_old(texts);
    return answer;
  }

  [[nodiscard]] static std::string too_old(const ClaimTexts& texts) {
    return fmt::format("COALESCE({} + {} < clock_timestamp(), false)", texts.occurred, texts.window);
  }

  [[nodiscard]] std::string settings(const Key& key, Duration wait) const {
    const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
    std::string sql;
    append_tenant(sql, key);
    return sql +
           fmt::format("SET LOCAL lock_timeout = '{}ms'; ", std::clamp<std::int64_t>(wait_ms, 1, 2147483647));
  }

  /// `committed_at IS NULL`, spelled so that it does not call for the index of leases, which holds an entry for
  /// every lease that ended since the last vacuum.
  static constexpr std::string_view still_leased = "COALESCE(committed_at IS NULL, false)";

  static constexpr std::string_view lease_rest =
      "(EXTRACT(EPOCH FROM leased_until - clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint";

  [[nodiscard]] std::string find_sql(std::string_view which) const {
    return fmt::format(
        "SELECT claim_token, encode(fingerprint, 'hex'), encode(value, 'hex'), {}, committed_at IS NULL, {} FROM {} WHERE {}",
        is_free, lease_rest, keys_, which);
  }

  /// Fails with `ended_mark` unless the transaction is the one named.
  [[nodiscard]] static std::string guard_sql(std::string_view xid) {
    return "SELECT " + or_fail(fmt::format("pg_current_xact_id_if_assigned() IS NOT DISTINCT FROM {}", xid));
  }

  [[nodiscard]] std::string guard(std::string_view xid, Spelling spelling) const {
    if (spelling == Spelling::prepared) return fmt::format("EXECUTE {} ('{}')", guard_name_, xid);
    return guard_sql(fmt::format("'{}'::xid8", xid));
  }

  [[nodiscard]] std::string move_end(const Claim& claim, const Grant& grant, std::string_view end) const {
    return settings(claim.key, claim.wait_limit) +
           fmt::format("UPDATE {} SET leased_until = {} WHERE {} AND {} RETURNING fence", keys_, end,
                       where(claim.key, grant), still_leased);
  }

  [[nodiscard]] static std::string where(const Key& key, const Grant& grant) {
    return fmt::format("{} AND claim_token = '{}' AND fence = {}", where(key), hex_of(grant.claim),
                       grant.fence);
  }

  [[nodiscard]] static std::string where(const Key& key) {
    return fmt::format("tenant = {} AND consumer = {} AND event_id = {}", text_value(key.tenant()),
                       text_value(key.consumer()), text_value(key.event_id()));
  }

  void append_tenant(std::string& sql, const Key& key) const {
    if (!tenant_setting_.empty())
      sql += fmt::format("SELECT set_config({}, {}, true); ", tenant_setting_, text_value(key.tenant()));
  }

  std::string keys_;
  std::string attempts_;
  std::string fences_;
  std::string begin_;
  std::string tenant_setting_;
  std::string claim_name_;
  std::string guard_name_;
  std::string find_name_;
  std::string prepare_;
};

}  // namespace idem::postgres::detail
