// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/duration.hpp>
#include <idem/error.hpp>
#include <idem/outbox.hpp>
#include <idem/postgres/detail/outbox_channel.hpp>
#include <idem/postgres/detail/relay_rounds.hpp>
#include <idem/postgres/detail/relay_wake.hpp>
#include <idem/postgres/relay_options.hpp>
#include <idem/postgres/store.hpp>
#include <idem/published.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres {

namespace detail {

/// Backs off to an hour, and gives up after half a day or so.
inline constexpr auto default_relay_policy =
    ExponentialBackoff{std::chrono::seconds{1}, std::chrono::hours{1}} | EqualJitter{} | MaxAttempts{25};

template <class Publish>
concept PublishesOne = std::invocable<Publish&, const Outgoing&>;
template <class Publish>
concept PublishesBatch = std::is_invocable_r_v<std::vector<Published>, Publish&, std::span<const Outgoing>>;

[[nodiscard]] inline std::vector<Published> each_failed(std::size_t count, const std::string& why,
                                                        std::optional<Duration> retry_after = {}) {
  return std::vector<Published>(count, Published::failed(why, retry_after));
}

/// What the exception that is being handled says of the one message that was published. Throws:
/// ConfigurationError — it is that.
[[nodiscard]] inline Published published_by_exception() {
  try {
    throw;
  } catch (const ConfigurationError&) {
    throw;
  } catch (const BrokerDown& e) {
    return Published::broker_down(e.what(), e.retry_after());
  } catch (const TransientError& e) {
    return Published::failed(e.what(), e.retry_after());
  } catch (const PermanentError& e) {
    return Published::dead(e.what());
  } catch (const std::exception& e) {
    return Published::failed(e.what());
  } catch (...) {
    return Published::failed("publish threw something that is no std::exception");
  }
}

}  // namespace detail

/// Sends what handlers have enqueued, at least once, and the messages of a key one after another.
///
/// `publish` is either called with one message and throws what went wrong,
///
///     void publish(const idem::Outgoing& message);
///
/// or with some, no two of which have the same key, and says of each, in the same order, what became of it:
///
///     std::vector<idem::Published> publish(std::span<const idem::Outgoing> messages);
///
/// It returns once the broker has the message for good. It throws `BrokerDown` when it is the broker that fails,
/// `PermanentError` for a message that can never be sent (it is dead at once), `TransientError` with how long to
/// wait at least; anything else is a failure of the message, too. What is thrown for several messages says nothing
/// of each, so they are then published one by one.
///
/// A message that fails waits as the retry policy says, counted by its attempts, and is dead when that ends; the
/// messages of its key wait for it, or go on without it once it is dead. Nothing else waits: not other keys, nor
/// messages without one. Dead messages stay in the table: see `Outbox`.
///
/// Guarantee: a message is sent until it is noted as sent, by the same id each time: again after a crash, a lost
/// connection, or publishing for longer than the claim lasts. Until then (and but for that last case) no two
/// relays send messages of one key at the same time, however many there are. The order of a key is that of its
/// insertions, among what is committed: transactions that must be in order must wait for each other, as those
/// do that lock a row first.
///
/// It has a connection of its own, and while `run` runs a second one to be told of new messages. Its role needs
/// SELECT and UPDATE on the outbox and no other table; under row security, a policy that shows it every tenant.
///
/// Thread safety: an object is used by one thread at a time; any number of objects in any number of processes.
template <class Publish, RetryPolicy Policy>
class OutboxRelay {
  static_assert(detail::PublishesOne<Publish> || detail::PublishesBatch<Publish>,
                "OutboxRelay: publish takes (const idem::Outgoing&) and returns void, or takes "
                "(std::span<const idem::Outgoing>) and returns std::vector<idem::Published>");
  static_assert(
      !Policy::limits_elapsed,
      "OutboxRelay counts attempts and knows no elapsed time: use MaxAttempts or Intervals in place of "
      "MaxElapsed");

 public:
  /// The store outlives it. `policy`: when a message that failed is tried again, and when it is dead; left out, it
  /// is dead after half a day or so.
  ///
  /// Throws: ConfigurationError — an option is out of its range.
  OutboxRelay(const PostgresStore& store, Publish publish, Policy policy, RelayOptions options = {},
              Runtime runtime = {})
      : publish_{std::move(publish)},
        redeliver_{policy},
        rounds_{store, std::move(options), std::move(runtime)} {}
  explicit OutboxRelay(const PostgresStore& store, Publish publish, RelayOptions options = {},
                       Runtime runtime = {}) requires
      std::same_as<Policy, std::remove_cv_t<decltype(detail::default_relay_policy)>>
      : OutboxRelay{store, std::move(publish), detail::default_relay_policy, std::move(options),
                    std::move(runtime)} {}

  OutboxRelay(const OutboxRelay&) = delete;
  OutboxRelay& operator=(const OutboxRelay&) = delete;

  /// Claims what may be sent, a batch at the most, publishes it, and notes what became of it: two messages to the
  /// server. At a stop it finishes what it is publishing, and gives the rest back.
  ///
  /// Throws: ConfigurationError — the schema or a right is missing, or publish threw one; TransientError — the
  /// server cannot be reached. What was published and is not noted yet is noted by the next call.
  RelayReport run_once(const std::stop_token& stop = {}) {
    try {
      RelayReport report = round(stop);
      rounds_.flush();
      return report;
    } catch (const ConfigurationError&) {
      flush_if_possible();
      throw;
    }
  }

  /// Sends until it is asked to stop. It notes one batch and claims the next with one message, waits when there is
  /// nothing to do (until a message is due or new, and `RelayOptions::poll` at the most), and outlives outages of
  /// the server and of the broker. A stop waits for what is being published, and for a connection that is being
  /// opened (libpq's connect_timeout).
  ///
  /// Throws: ConfigurationError, as `run_once`.
  void run(const std::stop_token& stop) {
    detail::RelayWake wake;
    const detail::RelayListener listener{rounds_.upkeep().connector(),
                                         detail::outbox_channel(rounds_.upkeep().options().schema), wake};
    std::uint64_t troubles = 0;
    while (!stop.stop_requested()) {
      RelayReport report;
      bool in_trouble = false;
      try {
        report = round(stop);
        // A claim that ran out before anything was published: no server is that slow for long.
        in_trouble = report.claimed > 0 && report.given_back == report.claimed && !report.broker_down;
      } catch (const ConfigurationError&) {
        flush_if_possible();
        throw;
      } catch (const std::exception& e) {
        report.error = e.what();
        in_trouble = true;
      }
      troubles = in_trouble ? troubles + 1 : 0;
      if (in_trouble) report.next_in = pause_after(troubles);
      tell(report);
      if (in_trouble || report.broker_down)
        rounds_.runtime().sleeper(from_now(report.next_in), stop);
      else if (report.next_in > Duration{0})
        wake.sleep(rounds_.runtime(), from_now(report.next_in), stop);
    }
    finish();
  }

 private:
  RelayReport round(const std::stop_token& stop) {
    const auto publish = [this](std::span<const Outgoing> messages) { return publish_them(messages); };
    const auto decide = [this](const RetryState& state) { return redeliver_.decide(state); };
    constexpr auto mode =
        detail::PublishesOne<Publish> ? detail::PublishMode::one : detail::PublishMode::batch;
    return rounds_.round(mode, publish, decide, stop);
  }

  std::optional<std::vector<Published>> publish_them(std::span<const Outgoing> messages) {
    try {
      if constexpr (detail::PublishesOne<Publish>) {
        static_assert(std::is_void_v<std::invoke_result_t<Publish&, const Outgoing&>>,
                      "OutboxRelay: publish(const idem::Outgoing&) returns void; it throws what goes wrong");
        publish_(messages.front());
        return std::vector<Published>{Published::sent()};
      } else {
        std::vector<Published> published = publish_(messages);
        if (published.size() == messages.size()) return published;
        return detail::each_failed(
            messages.size(),
            fmt::format("publish answered for {} messages of {}: it must say of each what became of it",
                        published.size(), messages.size()));
      }
    } catch (...) {
      const Published published = detail::published_by_exception();
      if (published.fate() != Published::Fate::broker_down && messages.size() > 1) return std::nullopt;
      return std::vector<Published>(messages.size(), published);
    }
  }

  [[nodiscard]] std::chrono::steady_clock::time_point from_now(Duration span) const {
    return idem::detail::saturating_add(idem::detail::SteadyTime{rounds_.runtime().clock()}, span);
  }

  /// When the server is in trouble.
  [[nodiscard]] Duration pause_after(std::uint64_t troubles) const {
    constexpr auto backoff =
        ExponentialBackoff{std::chrono::milliseconds{100}, std::chrono::seconds{15}} | EqualJitter{};
    const RetryDecision pause = backoff.decide({.failures = troubles});
    return sample(pause.lo, pause.hi, rounds_.runtime().engine);
  }

  void tell(const RelayReport& report) const {
    try {
      if (rounds_.options().on_round) rounds_.options().on_round(report);
    } catch (...) {  // who watches changes nothing
    }
  }

  void flush_if_possible() {
    try {
      rounds_.flush();
    } catch (const std::exception&) {  // the claim runs out by itself
    }
  }

  /// At a stop: messages that are not noted are sent again, so a short outage is worth some patience.
  void finish() {
    constexpr std::uint64_t tries = 3;
    for (std::uint64_t i = 1;; ++i) {
      try {
        return rounds_.flush();
      } catch (const ConfigurationError&) {
        throw;
      } catch (const std::exception&) {
        if (i == tries) return;
      }
      rounds_.runtime().sleeper(from_now(pause_after(i)), {});
    }
  }

  Publish publish_;
  Redeliver<Policy> redeliver_;
  detail::RelayRounds rounds_;
};

template <class Publish, RetryPolicy Policy>
OutboxRelay(const PostgresStore&, Publish, Policy) -> OutboxRelay<Publish, Policy>;
template <class Publish, RetryPolicy Policy>
OutboxRelay(const PostgresStore&, Publish, Policy, RelayOptions) -> OutboxRelay<Publish, Policy>;
template <class Publish, RetryPolicy Policy>
OutboxRelay(const PostgresStore&, Publish, Policy, RelayOptions, Runtime) -> OutboxRelay<Publish, Policy>;
template <class Publish>
OutboxRelay(const PostgresStore&, Publish)
    -> OutboxRelay<Publish, std::remove_cv_t<decltype(detail::default_relay_policy)>>;
template <class Publish>
OutboxRelay(const PostgresStore&, Publish, RelayOptions)
    -> OutboxRelay<Publish, std::remove_cv_t<decltype(detail::default_relay_policy)>>;
template <class Publish>
OutboxRelay(const PostgresStore&, Publish, RelayOptions, Runtime)
    -> OutboxRelay<Publish, std::remove_cv_t<decltype(detail::default_relay_policy)>>;

}  // namespace idem::postgres
