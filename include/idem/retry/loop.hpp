// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include <idem/retry/policy.hpp>
#include <idem/retry/sample.hpp>

namespace idem {

/// A failure as a retry loop reports it.
struct RetryFailure {
  ErrorClass kind = ErrorClass::transient;  ///< `in_doubt`: the doubt is resolved, the commit did not happen
  std::optional<Duration> retry_after{};
  std::optional<Duration> hold_left{};
};

/// The decision on one failure, with the delay that was drawn for it.
struct RetryStep {
  RetryDecision decision{};
  Duration delay{};  ///< 0 unless the verdict is `retry`

  [[nodiscard]] constexpr bool retry() const noexcept { return decision.verdict == RetryVerdict::retry; }
};

/// Keeps the state of one call for its policy; the caller does the sleeping.
///
/// Thread safety: one call, one thread.
template <RetryPolicy Policy>
class RetryLoop {
 public:
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

  constexpr explicit RetryLoop(const Policy& policy) noexcept : policy_{policy} {}

  /// Takes a failure in and says what is next. Draws from `engine` at most once, and only for a retry.
  ///
  /// The first doubt of a call that turns out aborted is free, later ones count as `reconnect`.
  template <class Engine>
  [[nodiscard]] constexpr RetryStep failed(const RetryFailure& failure, TimePoint now, Engine& engine) {
    ErrorClass kind = failure.kind;
    if (kind == ErrorClass::in_doubt) {
      if (!std::exchange(doubted_, true)) return {.decision = {.reason = RetryReason::aborted_doubt}};
      kind = ErrorClass::reconnect;
    }
    if (state_.failures == 0) first_failure_ = now;
    if (state_.failures < (std::numeric_limits<std::uint64_t>::max)()) ++state_.failures;
    state_.elapsed =
        (std::max)(Duration::zero(),
                   detail::saturating_subtract(now.time_since_epoch(), first_failure_.time_since_epoch()));
    state_.kind = kind;
    state_.retry_after = failure.retry_after;
    state_.hold_left = failure.hold_left;
    RetryStep step{.decision = policy_.decide(state_)};
    if (!step.retry()) return step;
    if (!policy_.withdraw()) {
      step.decision = {.verdict = RetryVerdict::redeliver,
                       .reason = RetryReason::budget_empty,
                       .retry_after = step.decision.retry_after};
      return step;
    }
    step.delay = state_.last_delay = sample(step.decision.lo, step.decision.hi, engine);
    return step;
  }

  /// Tells the policy of a success.
  constexpr void succeeded() const noexcept { policy_.succeeded(); }

  /// The failures counted so far.
  [[nodiscard]] constexpr std::uint64_t failures() const noexcept { return state_.failures; }

 private:
  Policy policy_;
  RetryState state_{.failures = 0};
  TimePoint first_failure_{};
  bool doubted_ = false;
};

}  // namespace idem
