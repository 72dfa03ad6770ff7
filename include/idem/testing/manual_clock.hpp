// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <stop_token>

#include <idem/duration.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/retry/sample.hpp>
#include <idem/runtime.hpp>

namespace idem::testing {

/// A clock that stands still until a test moves it, for consumers (`runtime`) and for a MemoryStore (`store_clock`).
///
/// What it hands out refers to it: the clock outlives them.
///
/// Thread safety: any number of threads.
class ManualClock {
 public:
  /// `start`: what the store's clock shows at first. The consumers' clock starts at its zero.
  explicit ManualClock(
      std::chrono::system_clock::time_point start = std::chrono::sys_days{std::chrono::year{2026} / 1 / 1})
      : start_{start} {}
  ManualClock(const ManualClock&) = delete;
  ManualClock& operator=(const ManualClock&) = delete;

  /// Throws: std::invalid_argument — `span` is below zero: no clock of idem's goes backwards.
  void advance(Duration span) {
    if (span < Duration{0})
      throw std::invalid_argument{"ManualClock::advance: the span is below zero, and time does not go back"};
    std::int64_t before = passed_.load();
    while (!passed_.compare_exchange_weak(before, detail::saturating_add(Duration{before}, span).count())) {
    }
  }

  /// Moves the clock on to `until`; not back, where it is later already.
  void advance_to(std::chrono::steady_clock::time_point until) {
    const std::int64_t goal = Duration{until.time_since_epoch()}.count();
    std::int64_t before = passed_.load();
    while (before < goal && !passed_.compare_exchange_weak(before, goal)) {
    }
  }

  /// How far the clock was moved since it was made.
  [[nodiscard]] Duration passed() const noexcept { return Duration{passed_.load()}; }

  /// The time as consumers see it.
  [[nodiscard]] std::chrono::steady_clock::time_point now() const noexcept {
    return std::chrono::steady_clock::time_point{
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(passed())};
  }

  /// The time as the store sees it.
  [[nodiscard]] std::chrono::system_clock::time_point store_now() const noexcept {
    return start_ + std::chrono::duration_cast<std::chrono::system_clock::duration>(passed());
  }

  /// A consumer's part: it sees this clock, moves it instead of sleeping, and draws from a seeded engine.
  [[nodiscard]] Runtime runtime(std::uint64_t seed = 1) {
    return {.clock = [this] { return now(); },
            .sleeper =
                [this](std::chrono::steady_clock::time_point until, const std::stop_token& stop) {
                  if (!stop.stop_requested()) advance_to(until);
                },
            .engine = SplitMix64{seed}};
  }

  /// For MemoryStore's constructor, or a store of your own.
  [[nodiscard]] std::function<std::chrono::system_clock::time_point()> store_clock() const {
    return [this] { return store_now(); };
  }

 private:
  std::chrono::system_clock::time_point start_;
  std::atomic<std::int64_t> passed_ = 0;
};

}  // namespace idem::testing
