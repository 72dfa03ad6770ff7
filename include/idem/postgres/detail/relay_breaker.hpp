// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include <idem/duration.hpp>
#include <idem/postgres/relay_options.hpp>
#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/sample.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres::detail {

/// Keeps a relay from a broker that is down: closed, open until a moment, then half open.
class RelayBreaker {
 public:
  explicit RelayBreaker(const BreakerOptions& options)
      : pauses_{options.first_pause, options.longest_pause} {}

  void broker_down(std::optional<Duration> retry_after, const Runtime& runtime) {
    ++failures_;
    const RetryDecision pause = (pauses_ | EqualJitter{}).decide({.failures = failures_});
    const Duration drawn = sample(pause.lo, pause.hi, runtime.engine);
    until_ = idem::detail::saturating_add(idem::detail::SteadyTime{runtime.clock()},
                                          (std::max)(drawn, retry_after.value_or(Duration{0})));
  }
  void answered() noexcept { failures_ = 0; }

  /// How long to leave the broker alone.
  [[nodiscard]] Duration pause_left(const Runtime& runtime) const {
    if (failures_ == 0) return Duration{0};
    return (std::max<Duration>)(until_ - runtime.clock(), Duration{0});
  }
  /// Then one message goes first.
  [[nodiscard]] bool doubts() const noexcept { return failures_ > 0; }

 private:
  ExponentialBackoff pauses_;
  std::uint64_t failures_ = 0;
  idem::detail::SteadyTime until_{};
};

}  // namespace idem::postgres::detail
