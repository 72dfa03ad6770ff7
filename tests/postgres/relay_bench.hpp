// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pqxx/pqxx>

#include <idem/outbox.hpp>
#include <idem/postgres/relay.hpp>
#include <idem/postgres/store.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>

#include "support/server.hpp"

namespace idem::tests::relaying {

using Ids = std::vector<std::string>;

/// Tries again at once, without an end.
inline constexpr auto at_once = Immediate{};
/// Tries again in an hour, without an end.
inline constexpr auto hourly = ConstantBackoff{std::chrono::hours{1}};

/// Asks again and again, at most for a minute.
inline void until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes{1};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error{"asked in vain"};
    std::this_thread::yield();
  }
}

/// An outbox of its own, filled with plain SQL.
class Tables {
 public:
  Tables() : store{with_name(server_dsn(), schema), {.schema = schema}} { store.create_schema(); }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
  ~Tables() {
    try {
      drop_schema(schema);
    } catch (const std::exception&) {  // its name is never used again
    }
  }

  const std::string schema = unique_schema("relay");
  PostgresStore store;

  [[nodiscard]] static std::string with_name(const std::string& dsn, const std::string& name) {
    return dsn + " application_name=" + name;
  }
  [[nodiscard]] std::string insert_sql(const std::string& id, const std::string& key,
                                       const std::string& due = "clock_timestamp()") const {
    return "INSERT INTO " + schema +
           ".outbox (id, tenant, consumer, event_id, topic, key, payload, due_at) VALUES ('" + id +
           "', 'acme', 'pay.v1', 'e-1', 'paid', '" + key + "', 'the payload', " + due + ")";
  }
  void insert(const std::string& id, const std::string& key = {},
              const std::string& due = "clock_timestamp()") const {
    execute(insert_sql(id, key, due));
  }
  void change(const std::string& assignments, const std::string& where = "true") const {
    execute("UPDATE " + schema + ".outbox SET " + assignments + " WHERE " + where);
  }
  /// What `expression` is for the message.
  [[nodiscard]] std::string of(const std::string& id, const std::string& expression) const {
    return query_value("SELECT " + expression + " FROM " + schema + ".outbox WHERE id = '" + id + "'");
  }
  /// Each message's id, what it waits for, and how often it failed.
  [[nodiscard]] std::string told() const {
    return query_value(
        "SELECT coalesce(string_agg(id || ':' || CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN dead_at IS NOT NULL THEN "
        "'dead' WHEN claimed_by IS NOT NULL THEN 'claimed' WHEN due_at > clock_timestamp() THEN 'parked' ELSE 'waiting' "
        "END || attempts, ' ' ORDER BY seq), '') FROM " +
        schema + ".outbox");
  }
  /// Cuts every connection that this store's relays have.
  [[nodiscard]] std::string cut_sql() const {
    return "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = '" +
           schema + "' AND pid <> pg_backend_pid()";
  }
};

/// What was handed over, in order.
class Broker {
 public:
  void take(const Outgoing& outgoing) {
    const std::lock_guard lock{mutex_};
    taken_.push_back(outgoing.message.id);
  }
  [[nodiscard]] Ids taken() const {
    const std::lock_guard lock{mutex_};
    return taken_;
  }
  /// Publishes all but those with these ids, which fail.
  [[nodiscard]] auto refusing(std::set<std::string> ids) {
    return [this, ids = std::move(ids)](const Outgoing& outgoing) {
      take(outgoing);
      if (ids.count(outgoing.message.id) != 0) throw std::runtime_error{"refused"};
    };
  }
  [[nodiscard]] auto taking() { return refusing({}); }

 private:
  mutable std::mutex mutex_;
  Ids taken_;
};

/// A clock that only sleeping, and whoever says so, moves on.
class Time {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  [[nodiscard]] Runtime runtime(std::uint64_t random = 0) {
    return {.clock = [this] { return now; },
            .sleeper =
                [this](TimePoint until, const std::stop_token& stop) {
                  if (stop.stop_requested()) return;
                  slept.push_back(until - now);
                  now = until;
                  if (on_sleep) on_sleep();
                },
            .engine = [random] { return random; }};
  }

  TimePoint now{std::chrono::hours{1}};
  std::vector<Duration> slept = {};
  std::function<void()> on_sleep = {};
};

}  // namespace idem::tests::relaying
