// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/duration.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// What is to be noted of a message that a relay claimed.
struct RelayMark {
  enum class What { sent, failed, dead, given_back };

  std::int64_t seq = 0;
  What what = What::given_back;
  Duration delay{};        ///< `failed`: before the next try
  std::string error = {};  ///< `failed`, `dead`
};

/// What a claim asks for.
struct RelayClaim {
  ClaimToken token;
  std::string after;  ///< the lane to go on behind
  std::size_t batch;
  std::size_t per_key;
  Duration length;
};

/// The SQL of a relay: parts of messages, each of which is one transaction.
///
/// Claims exclude each other and all marks (one advisory lock): so a claim sees every row as it is, and takes
/// whole beginnings of lanes, none of which anybody else has claimed.
class RelayStatements {
 public:
  explicit RelayStatements(const Upkeep& upkeep)
      : outbox_{upkeep.table("outbox")}, schema_{text_value(upkeep.options().schema)} {}

  enum class Lock { for_claim, for_marks };

  [[nodiscard]] std::string lock(Lock how) const {
    return fmt::format("SELECT pg_advisory_xact_lock{}(hashtextextended({}, 1768186223::bigint)); ",
                       how == Lock::for_claim ? "" : "_shared", schema_);
  }

  /// Of rows that `token` still holds; whoever took them over has the say.
  [[nodiscard]] std::string mark(std::span<const RelayMark> marks, const ClaimToken& token) const {
    std::string sent;
    std::string failed;
    std::string back;
    for (const RelayMark& m : marks) {
      if (m.what == RelayMark::What::sent) append_item(sent, fmt::format("{}", m.seq));
      if (m.what == RelayMark::What::given_back) append_item(back, fmt::format("{}", m.seq));
      if (m.what == RelayMark::What::failed)
        append_item(failed, fmt::format("({}, {}, {})", m.seq, interval(m.delay), text_value(m.error)));
      if (m.what == RelayMark::What::dead)
        append_item(failed, fmt::format("({}, NULL::interval, {})", m.seq, text_value(m.error)));
    }
    std::string sql;
    if (!sent.empty())
      sql += fmt::format("UPDATE {} SET sent_at = clock_timestamp(), {} WHERE seq IN ({}) AND {}; ", outbox_,
                         released, sent, held_by(token));
    if (!failed.empty())
      sql += fmt::format(
          "UPDATE {} o SET attempts = o.attempts + 1, last_error = m.error, "
          "due_at = COALESCE(clock_timestamp() + m.delay, o.due_at), "
          "dead_at = CASE WHEN m.delay IS NULL THEN clock_timestamp() END, {} "
          "FROM (VALUES {}) AS m (seq, delay, error) WHERE o.seq = m.seq AND {}; ",
          outbox_, released, failed, held_by(token));
    if (!back.empty())
      sql +=
          fmt::format("UPDATE {} SET {} WHERE seq IN ({}) AND {}; ", outbox_, released, back, held_by(token));
    return sql;
  }

  /// Gives back whatever a claim took whose answer never came.
  [[nodiscard]] std::string give_back(const ClaimToken& token) const {
    return fmt::format("UPDATE {} SET {} WHERE claimed_until IS NOT NULL AND {} AND {}; ", outbox_, released,
                       unsent, held_by(token));
  }

  /// Walks over the lanes behind `after`, one probe of the index each, and takes the beginnings of those whose
  /// first row is due and none of whose rows anybody holds. Repeated, it answers with the same rows.
  ///
  /// Its rows: how the walk went (`walked`: the lanes seen, `ended`: behind the last one, `last_lane`,
  /// `next_in`: microseconds until the first of the lanes passed over may be taken), in each; and a message,
  /// or NULLs where there is none.
  ///
  /// What the planner is told: a table that has just grown has statistics that make it read all of it.
  [[nodiscard]] std::string claim(const RelayClaim& claim) const {
    return fmt::format(
        "SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
        "SET LOCAL enable_mergejoin = off; "
        "WITH RECURSIVE now AS MATERIALIZED (SELECT clock_timestamp() AS at), "
        "mine AS MATERIALIZED (SELECT seq FROM {outbox} WHERE claimed_until IS NOT NULL AND {unsent} AND {held}), "
        "walk (walked, found, lane, seq, due, held) AS ("
        "SELECT 0, 0, {after} COLLATE \"C\", NULL::bigint, NULL::timestamptz, NULL::timestamptz "
        "UNION ALL "
        "SELECT w.walked + 1, w.found + (h.due <= at AND h.held IS NULL)::integer, h.lane, h.seq, h.due, h.held "
        "FROM walk w CROSS JOIN now CROSS JOIN LATERAL ("
        "SELECT o.lane, o.seq, o.due_at AS due, CASE WHEN o.due_at <= at THEN "
        "(SELECT max(c.claimed_until) FROM {outbox} c WHERE c.lane = o.lane AND c.claimed_until > at AND "
        "c.sent_at IS NULL AND c.dead_at IS NULL) END AS held "
        "FROM {outbox} o WHERE o.lane > w.lane AND {unsent} ORDER BY o.lane, o.seq LIMIT 1) h "
        "WHERE w.walked < {most_lanes} AND w.found < {batch}), "
        "heads AS (SELECT lane, seq FROM walk, now WHERE due <= at AND held IS NULL), "
        "picked AS MATERIALIZED (SELECT seq FROM ("
        "SELECT r.seq, sum(r.size) OVER (ORDER BY r.place, r.seq) - r.size AS before "
        "FROM heads h CROSS JOIN now CROSS JOIN LATERAL ("
        "SELECT q.seq, q.size, row_number() OVER (ORDER BY q.seq) AS place, "
        "bool_and(q.due_at <= at) OVER (ORDER BY q.seq) AS in_turn "
        "FROM (SELECT o.seq, o.due_at, octet_length(o.payload) AS size FROM {outbox} o "
        "WHERE o.lane = h.lane AND o.seq >= h.seq AND {unsent} ORDER BY o.lane, o.seq "
        "LIMIT (SELECT GREATEST(1, LEAST({per_key}, {batch} / count(*))) FROM heads)) q) r "
        "WHERE r.in_turn AND NOT EXISTS (SELECT 1 FROM mine)) s WHERE before < {most_bytes} "
        "UNION ALL SELECT seq FROM mine), "
        // COALESCE: so that the planner does not take the index of all waiting rows for this.
        "claimed AS (UPDATE {outbox} o SET claimed_by = '{token}', claimed_until = clock_timestamp() + {length} "
        "FROM now WHERE o.seq = ANY (ARRAY(SELECT seq FROM picked)) AND COALESCE(o.sent_at, o.dead_at) IS NULL "
        "RETURNING o.*) "
        "SELECT s.walked, s.ended, s.last_lane, s.next_in, c.seq, c.lane, c.id, c.topic, c.key, "
        "encode(c.payload, 'hex'), (SELECT string_agg(encode(pg_catalog.convert_to(h, 'UTF8'), 'hex') || '.', '' ORDER BY n) "
        "FROM unnest(c.headers) WITH ORDINALITY AS u (h, n)), c.attempts, c.tenant, c.consumer, c.event_id, "
        "floor(EXTRACT(EPOCH FROM c.enqueued_at) * 1000000)::bigint "
        "FROM (SELECT max(walked) AS walked, max(walked) < {most_lanes} AND max(found) < {batch} AS ended, "
        "max(lane) AS last_lane, (EXTRACT(EPOCH FROM LEAST(min(CASE WHEN due > at THEN due ELSE held END), "
        "max(at) + '1 day'::interval) - clock_timestamp()) * 1000000)::bigint AS next_in FROM walk, now) s "
        "LEFT JOIN claimed c ON true ORDER BY c.seq",
        fmt::arg("outbox", outbox_), fmt::arg("unsent", unsent), fmt::arg("held", held_by(claim.token)),
        fmt::arg("after", text_value(claim.after)), fmt::arg("most_lanes", most_lanes),
        fmt::arg("batch", claim.batch), fmt::arg("per_key", std::min<std::size_t>(claim.per_key, 10'000)),
        fmt::arg("most_bytes", most_bytes), fmt::arg("token", hex_of(claim.token)),
        fmt::arg("length", interval(claim.length)));
  }

 private:
  static constexpr std::string_view unsent = "sent_at IS NULL AND dead_at IS NULL";
  static constexpr std::string_view released = "claimed_by = NULL, claimed_until = NULL";
  /// A probe takes some 8 microseconds, and nobody else claims meanwhile.
  static constexpr int most_lanes = 2'000;
  static constexpr int most_bytes = 16 << 20;

  [[nodiscard]] static std::string held_by(const ClaimToken& token) {
    return fmt::format("claimed_by = '{}'", hex_of(token));
  }

  static void append_item(std::string& list, std::string_view item) {
    if (!list.empty()) list += ", ";
    list += item;
  }

  std::string outbox_;
  std::string schema_;
};

}  // namespace idem::postgres::detail
