// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/detail/text.hpp>
#include <idem/error.hpp>
#include <idem/postgres/detail/sql_text.hpp>

namespace idem::postgres {

/// What the roles are called. Two jobs of one name are one role, with the rights of both.
struct RoleNames {
  std::string worker = "idem_worker";       ///< consumers, `claim`, `enqueue`, and DeadLetters as their sink
  std::string relay = "idem_relay";         ///< OutboxRelay
  std::string janitor = "idem_janitor";     ///< Retention::purge
  std::string operator_ = "idem_operator";  ///< DeadLetters' other verbs, Retention::forget, stats
};

namespace detail {

[[nodiscard]] inline std::string create_role(std::string_view name) {
  return fmt::format(
      "DO {};\n",
      literal(fmt::format("BEGIN IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = {}) "
                          "THEN CREATE ROLE {} NOLOGIN; END IF; END",
                          literal(name), identifier(name))));
}

inline void check_role_name(std::string_view job, std::string_view name) {
  if (!name.empty() && name.size() <= 63 && name.find('\0') == std::string_view::npos) return;
  throw ConfigurationError{
      fmt::format("RoleNames: the {}'s \"{}\" is no role name: 1 to 63 bytes, without NUL", job,
                  idem::detail::escaped(name, 80))};
}

}  // namespace detail

/// The SQL that gives each kind of process the rights that it needs, and no more: for a DBA to read and run,
/// after `schema_sql()`, as the tables' owner and with the right to create roles.
///
/// The roles cannot log in: grant them to those that do (`GRANT idem_worker TO shop_app`). A worker also needs
/// what its handlers do; a process that redrives is operator and worker. Under row security, relays, janitors and
/// operators need a policy that shows them every tenant, or BYPASSRLS. It may be run again: it is one
/// transaction, and rights on these tables that an older version gave, and this one does not, are taken back.
///
/// A janitor and an operator may update a column of what they delete: that is what PostgreSQL asks of who locks
/// a row.
///
/// Throws: ConfigurationError — a name is empty, too long, or holds NUL.
[[nodiscard]] inline std::string roles_sql(std::string_view schema = "idem", const RoleNames& roles = {}) {
  detail::check_role_name("worker", roles.worker);
  detail::check_role_name("relay", roles.relay);
  detail::check_role_name("janitor", roles.janitor);
  detail::check_role_name("operator", roles.operator_);
  const std::string all =
      fmt::format("{}, {}, {}, {}", detail::identifier(roles.worker), detail::identifier(roles.relay),
                  detail::identifier(roles.janitor), detail::identifier(roles.operator_));
  std::string sql =
      fmt::format("BEGIN;\nSELECT pg_advisory_xact_lock(hashtextextended({}, 1768186221::bigint));\n",
                  detail::literal(schema));
  for (const std::string* name : {&roles.worker, &roles.relay, &roles.janitor, &roles.operator_})
    sql += detail::create_role(*name);
  return sql +
         fmt::format(
             R"(REVOKE ALL ON {s}.keys, {s}.attempts, {s}.schema_info, {s}.outbox, {s}.dead_letters FROM {all};
REVOKE ALL ON SEQUENCE {s}.fences FROM {all};
GRANT USAGE ON SCHEMA {s} TO {all};
GRANT SELECT ON {s}.schema_info TO {all};

-- Workers: claim and lease keys, count starts, publish, and record dead letters. They delete nothing.
GRANT SELECT, INSERT, UPDATE (claim_token, fingerprint, value, committed_at, window_ends, generation, leased_until, fence)
  ON {s}.keys TO {worker};
GRANT USAGE ON SEQUENCE {s}.fences TO {worker};
GRANT SELECT, INSERT, UPDATE (starts, failures, open_starts, times_done, started_at) ON {s}.attempts TO {worker};
GRANT SELECT (tenant, id), INSERT (id, tenant, consumer, event_id, topic, key, payload, headers)
  ON {s}.outbox TO {worker};
GRANT SELECT (tenant, consumer, event_id, fingerprint, recorded, last_token, last_kind, last_code, last_message, attempts,
    delivery_count, ordering_key, occurred_at, payload, payload_kept, reopened, closed_at),
  INSERT (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code, first_message, last_kind,
    last_code, last_message, attempts, delivery_count, ordering_key, occurred_at, payload, payload_kept),
  UPDATE (recorded, last_token, last_at, last_kind, last_code, last_message, attempts, delivery_count, ordering_key,
    occurred_at, payload, payload_kept, reopened, closed_at, closed_as, closed_reason)
  ON {s}.dead_letters TO {worker};

-- Relays: read messages, and note what became of them.
GRANT SELECT, UPDATE (due_at, attempts, claimed_by, claimed_until, last_error, sent_at, dead_at)
  ON {s}.outbox TO {relay};

-- Janitors: remove rows, without a sight of values and payloads.
GRANT SELECT (ctid, tenant, consumer, event_id, committed_at, window_ends, leased_until), UPDATE (window_ends), DELETE
  ON {s}.keys TO {janitor};
GRANT SELECT (ctid, tenant, consumer, event_id, started_at), UPDATE (started_at), DELETE ON {s}.attempts TO {janitor};
GRANT SELECT (ctid, tenant, consumer, event_id, sent_at), UPDATE (sent_at), DELETE ON {s}.outbox TO {janitor};
GRANT SELECT (ctid, tenant, consumer, event_id, closed_at), UPDATE (closed_at), DELETE
  ON {s}.dead_letters TO {janitor};
GRANT UPDATE (purges, purged_at, purged_rows) ON {s}.schema_info TO {janitor};

-- Operators: look, forget keys, redrive and discard dead letters, send messages again.
GRANT SELECT (tenant, consumer, event_id, committed_at, window_ends, generation, leased_until, fence),
  UPDATE (leased_until), DELETE ON {s}.keys TO {operator};
GRANT SELECT, UPDATE (starts, failures, open_starts), DELETE ON {s}.attempts TO {operator};
GRANT SELECT, UPDATE (redrives, verb_token, last_at, last_kind, last_code, last_message, attempts, closed_at,
    closed_as, closed_reason) ON {s}.dead_letters TO {operator};
GRANT SELECT (seq, id, tenant, consumer, event_id, topic, key, lane, enqueued_at, due_at, attempts, claimed_by,
    claimed_until, last_error, sent_at, dead_at),
  UPDATE (due_at, attempts, last_error, dead_at) ON {s}.outbox TO {operator};
GRANT UPDATE (purges) ON {s}.schema_info TO {operator};
COMMIT;
)",
             fmt::arg("s", detail::identifier(schema)), fmt::arg("all", all),
             fmt::arg("worker", detail::identifier(roles.worker)),
             fmt::arg("relay", detail::identifier(roles.relay)),
             fmt::arg("janitor", detail::identifier(roles.janitor)),
             fmt::arg("operator", detail::identifier(roles.operator_)));
}

}  // namespace idem::postgres
