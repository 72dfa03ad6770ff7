// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include <idem/duration.hpp>
#include <idem/retry/detail/saturating.hpp>

namespace idem::detail {

/// Calls `tick` every `every` on a thread of its own, first after `every`, until it is destroyed.
///
/// A tick that is running then is waited for: none comes after the destructor. `tick` does not throw.
class Ticker {
 public:
  Ticker(Duration every, std::function<void()> tick)
      : thread_{[every, tick = std::move(tick)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any wakes;
          std::unique_lock lock{mutex};
          while (true) {
            const auto next = saturating_add(std::chrono::steady_clock::now(), every);
            wakes.wait_until(lock, stop, next, [] { return false; });
            if (stop.stop_requested()) return;
            tick();
          }
        }} {}

 private:
  std::jthread thread_;
};

}  // namespace idem::detail
