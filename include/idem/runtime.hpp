// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <stop_token>
#include <utility>

#include <idem/retry/detail/saturating.hpp>
#include <idem/retry/sample.hpp>

namespace idem {

namespace detail {

using SteadyTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Waits for `until` or a stop, in slices: standard libraries turn the longest waits into none at all, by
/// overflow on the way to the system's own time.
template <class Now, class WaitUntil>
void sleep_in_slices(SteadyTime until, const std::stop_token& stop, Now now, WaitUntil wait_until) {
  constexpr Duration slice = std::chrono::hours{1};
  while (!stop.stop_requested()) {
    const SteadyTime moment = now();
    if (moment >= until) return;
    wait_until((std::min)(until, saturating_add(moment, slice)));
  }
}

inline void sleep_until(std::chrono::steady_clock::time_point until, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::unique_lock lock{mutex};
  sleep_in_slices(
      until, stop, [] { return std::chrono::steady_clock::now(); },
      [&](SteadyTime end) { wakes.wait_until(lock, stop, end, [] { return false; }); });
}

[[nodiscard]] inline SplitMix64 seeded_engine() {
  std::random_device device;
  const std::uint64_t high = device();
  return SplitMix64{high << 32 ^ device()};
}

}  // namespace detail

/// Time, sleeping and randomness, to be replaced in tests.
///
/// Each member that is left out, or empty, is the real thing.
struct Runtime {
  /// The time now; must not go backwards.
  std::function<std::chrono::steady_clock::time_point()> clock = [] {
    return std::chrono::steady_clock::now();
  };

  /// Returns at `until`, or as soon as the token is asked to stop. Called by several threads at once.
  std::function<void(std::chrono::steady_clock::time_point until, const std::stop_token&)> sleeper =
      detail::sleep_until;

  /// All 64 bits random, as of `std::mt19937_64`; of 32 bits, as of `std::mt19937`, only the shortest delays
  /// come. Called under a lock.
  std::function<std::uint64_t()> engine = detail::seeded_engine();
};

namespace detail {

/// The runtime with its empty members filled.
[[nodiscard]] inline Runtime with_defaults(Runtime runtime) {
  Runtime real;
  if (!runtime.clock) runtime.clock = std::move(real.clock);
  if (!runtime.sleeper) runtime.sleeper = std::move(real.sleeper);
  if (!runtime.engine) runtime.engine = std::move(real.engine);
  return runtime;
}

}  // namespace detail

}  // namespace idem
