// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include <idem/duration.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/postgres/detail/purging.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/postgres/store.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres {

/// What a purge removes, and how.
struct PurgeOptions {
  /// With `consumer`: removes that consumer's keys committed longer ago than this, whatever their window.
  std::optional<Duration> older_than = {};
  /// Named, only this consumer's rows are removed; `older_than` says which.
  std::string consumer = {};
  /// The most rows that one transaction removes from a table.
  std::size_t batch = 1'000;
  /// How long messages of the outbox stay after they were sent.
  Duration outbox_older_than = std::chrono::hours{24 * 7};
  /// How long dead letters stay after they were closed.
  Duration dead_letters_older_than = std::chrono::hours{24 * 7};
  /// Between two batches, for replicas and vacuum to keep up. 0 is no pause.
  Duration pause = Duration{0};
  /// Ends the purge between two batches.
  std::stop_token stop = {};
};

/// Why a purge ended.
enum class PurgeEnd {
  finished,  ///< nothing more is due (rows that others held locked are left to the next purge)
  stopped,   ///< the stop token asked for it
  busy       ///< another purge of this schema is at work, and goes on
};

/// What a purge did.
struct PurgeReport {
  std::uint64_t keys = 0;          ///< keys removed
  std::uint64_t attempts = 0;      ///< counts of starts removed
  std::uint64_t outbox = 0;        ///< sent messages removed
  std::uint64_t dead_letters = 0;  ///< closed dead letters removed
  std::uint64_t batches = 0;       ///< transactions
  Duration longest_batch{};        ///< the longest of them, as seen from here: no lock was held for longer
  PurgeEnd end = PurgeEnd::finished;

  [[nodiscard]] std::uint64_t rows() const noexcept { return keys + attempts + outbox + dead_letters; }
};

/// What became of a key that was to be forgotten.
enum class Forgotten {
  forgotten,        ///< it is gone: the next delivery of the event runs
  not_found,        ///< there is no such key
  leased,           ///< a live lease holds it, or one that never ends; nothing was changed
  open_dead_letter  ///< a dead letter of the event is open: redrive or discard it first; nothing was changed
};

/// Removes what no longer counts, in short transactions beside the handlers' work.
///
/// Never removed: live leases, leases without an end, keys with an open dead letter, and keys in their window
/// (unless their consumer and an age are named). All ages are by the server's clock. Rows that somebody holds
/// locked are passed over, so nobody waits for a purge but a delivery of an event whose key is being removed:
/// it waits for the batch, and then runs the handler.
///
/// It has one connection of its own. Under row security its role must see every row (BYPASSRLS, say).
///
/// Thread safety: one thread at a time; any number of processes, one at a time at work.
class Retention {
 public:
  /// The store outlives it.
  explicit Retention(const PostgresStore& store, Runtime runtime = {})
      : upkeep_{store}, purging_{upkeep_}, runtime_{idem::detail::with_defaults(std::move(runtime))} {}

  /// Without a consumer: removes keys whose window has ended, messages sent and dead letters closed long
  /// enough ago. With a consumer and an age: that consumer's keys, expired leases and counts of starts that
  /// are older; the table is read once for it. Counts of starts go with their key.
  ///
  /// Throws: ConfigurationError — the options are refused, the schema or a right is missing, and nothing was
  /// removed; InvalidKey — no consumer has this name; TransientError — the server cannot be reached.
  /// Guarantee: what ended before an error or a crash stays removed; whoever derives ids from a key's past
  /// (`schema_info.purges`) is told before the first key goes.
  PurgeReport purge(const PurgeOptions& options = {}) {
    check(options);
    Purge purge{options, {}, false};
    purging_.begin_at(upkeep_.ask(purging_.time())[0][0].as<std::int64_t>());
    if (options.consumer.empty())
      purge_due(purge);
    else
      purge_consumer(purge);
    if (purge.report.end == PurgeEnd::finished && options.consumer.empty())
      upkeep_.ask(purging_.record(purge.report.rows()));
    return purge.report;
  }

  /// Forgets one key, so that the next delivery of its event runs the handler again.
  ///
  /// Throws: TransientError — somebody holds the key, or the server cannot be reached (asked again it may
  /// then answer `not_found`); ConfigurationError — the schema or a right is missing.
  [[nodiscard]] Forgotten forget(const Key& key) {
    const Forgotten found = forgotten(upkeep_.ask(purging_.look_at(key)));
    if (found != Forgotten::forgotten) return found;
    upkeep_.ask(purging_.announce());
    return forgotten(upkeep_.ask(purging_.forget(key)));
  }

 private:
  struct Purge {
    const PurgeOptions& options;
    PurgeReport report;
    bool announced;
  };

  static void check(const PurgeOptions& options) {
    const auto refuse = [](std::string_view what) {
      throw ConfigurationError{fmt::format("PurgeOptions::{}", what)};
    };
    if (options.older_than && options.consumer.empty())
      refuse(
          "older_than is given without a consumer: keys in their window are removed for a named consumer "
          "only; name it, or leave older_than out to remove what has ended by itself");
    if (!options.consumer.empty()) {
      Key::check_consumer(options.consumer);
      if (!options.older_than)
        refuse(
            "consumer is given without older_than: say how old a key must be to be removed whatever its window");
      if (*options.older_than <= Duration{0}) refuse("older_than is not above zero");
    }
    if (options.batch == 0) refuse("batch is 0: a transaction removes at least one row");
    if (options.outbox_older_than <= Duration{0}) refuse("outbox_older_than is not above zero");
    if (options.dead_letters_older_than <= Duration{0}) refuse("dead_letters_older_than is not above zero");
    if (options.pause < Duration{0}) refuse("pause is below zero");
  }

  void purge_due(Purge& purge) {
    const PurgeOptions& options = purge.options;
    purge_by_time(purge, purging_.ended_keys(), purge.report.keys);
    purge_by_time(purge, purging_.sent_messages(options.outbox_older_than), purge.report.outbox);
    purge_by_time(purge, purging_.closed_letters(options.dead_letters_older_than), purge.report.dead_letters);
  }

  /// In the order of a time column that is indexed.
  void purge_by_time(Purge& purge, const detail::DueRows& due, std::uint64_t& removed) {
    std::optional<std::int64_t> reached;
    bool more = true;
    while (more && may_go_on(purge)) {
      const std::string rows = purging_.from(due, reached);
      if (due.are_keys && !announce(purge, rows)) return;
      const detail::Batch batch = run(purge, due, rows, due.by, removed);
      more = batch.found == purge.options.batch;
      if (batch.reached) reached = batch.reached;
    }
  }

  void purge_consumer(Purge& purge) {
    const PurgeOptions& options = purge.options;
    purge_by_place(purge, purging_.old_keys(options.consumer, *options.older_than), purge.report.keys);
    purge_by_place(purge, purging_.old_attempts(options.consumer, *options.older_than),
                   purge.report.attempts);
  }

  /// Through the whole table, some blocks at a time: as many as about a batch of rows is found in.
  void purge_by_place(Purge& purge, const detail::DueRows& due, std::uint64_t& removed) {
    const std::int64_t end = upkeep_.ask(purging_.blocks(due))[0][0].template as<std::int64_t>();
    std::int64_t step = 8;
    for (std::int64_t block = 0; block < end && may_go_on(purge);) {
      const std::string rows = purging_.between(due, block, block + step);
      bool whole = due.are_keys && !announce(purge, rows);
      if (!whole) whole = run(purge, due, rows, {}, removed).found < purge.options.batch;
      if (whole) block += step;
      step = std::clamp<std::int64_t>(whole ? 2 * step : step / 2, 1, 4096);
    }
  }

  /// False: the purge has ended.
  [[nodiscard]] bool may_go_on(Purge& purge) const {
    if (purge.report.end != PurgeEnd::finished) return false;
    if (purge.report.batches > 0 && purge.options.pause > Duration{0})
      runtime_.sleeper(idem::detail::saturating_add(runtime_.clock(), purge.options.pause),
                       purge.options.stop);
    if (purge.options.stop.stop_requested()) purge.report.end = PurgeEnd::stopped;
    return purge.report.end == PurgeEnd::finished;
  }

  /// Before the first key of a purge goes. False: there is none among these rows, and none needs to be sought.
  [[nodiscard]] bool announce(Purge& purge, std::string_view rows) {
    if (purge.announced) return true;
    if (upkeep_.ask(purging_.any_key(rows)).empty()) return false;
    upkeep_.ask(purging_.announce());
    return purge.announced = true;
  }

  detail::Batch run(Purge& purge, const detail::DueRows& due, std::string_view rows, std::string_view order,
                    std::uint64_t& removed) {
    const std::string statement = purging_.remove(due, rows, order, purge.options.batch);
    const auto began = runtime_.clock();
    const detail::Batch batch = detail::batch_of(upkeep_.ask(statement, lock_limit));
    purge.report.longest_batch = (std::max<Duration>)(purge.report.longest_batch, runtime_.clock() - began);
    if (!batch.ours) {
      purge.report.end = PurgeEnd::busy;
      return batch;
    }
    ++purge.report.batches;
    removed += batch.removed;
    purge.report.attempts += batch.attempts;
    return batch;
  }

  [[nodiscard]] static Forgotten forgotten(const pqxx::result& rows) {
    const std::string_view state = rows.empty() ? "not_found" : rows[0][0].c_str();
    if (state == "leased") return Forgotten::leased;
    if (state == "open") return Forgotten::open_dead_letter;
    return state == "not_found" ? Forgotten::not_found : Forgotten::forgotten;
  }

  /// For a lock on a whole table, or a count of starts that is being written; rows are never waited for.
  static constexpr Duration lock_limit = std::chrono::seconds{1};

  detail::Upkeep upkeep_;
  detail::Purging purging_;
  Runtime runtime_;
};

}  // namespace idem::postgres
