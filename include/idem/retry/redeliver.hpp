// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>
#include <idem/retry/policy.hpp>

namespace idem {

/// Says when the transport should bring a message back, and after how many deliveries to give up on it.
///
/// It takes the same kind of policy as a call, counted by deliveries. A hint is honoured in any case; a
/// budget is not charged.
template <RetryPolicy Policy>
class Redeliver {
 public:
  static_assert(!Policy::limits_elapsed,
                "Redeliver counts deliveries and knows no elapsed time: use MaxAttempts or Intervals in "
                "place of MaxElapsed");

  /// True if it can stop, so that a failing event ends as rejected.
  static constexpr bool has_limit = has_limit_v<Policy>;

  constexpr explicit Redeliver(Policy policy) noexcept : policy_{policy} {}

  [[nodiscard]] constexpr const Policy& policy() const noexcept { return policy_; }

  /// `redeliver` with the window of the delay, or `stop`. Looks at `failures`, the delivery count, and at
  /// `retry_after`, a floor; a negative one is no hint here.
  [[nodiscard]] constexpr RetryDecision decide(const RetryState& state) const noexcept {
    const bool hinted = state.retry_after && *state.retry_after >= Duration::zero();
    RetryDraft draft{.decision = policy_.decide({.failures = (std::max<std::uint64_t>)(1, state.failures)})};
    if (hinted) draft.decision.retry_after = state.retry_after;
    if (draft.decision.verdict != RetryVerdict::retry) return draft.decision;
    draft.decision.verdict = RetryVerdict::redeliver;
    if (hinted) HonourRetryAfter::wait_at_least(*state.retry_after, draft);
    return draft.decision;
  }

  /// As `decide`, for what is never rejected (an outage, a doubt): where the policy has stopped, its last
  /// delay counts, or without one that of `default_redeliver`.
  [[nodiscard]] constexpr RetryDecision give_back(RetryState state) const noexcept;

 private:
  Policy policy_;
};

template <class T>
inline constexpr bool is_redeliver_v = false;
template <class Policy>
inline constexpr bool is_redeliver_v<Redeliver<Policy>> = true;

/// What holds where no `Redeliver` is given: backs off to five minutes, without a limit of its own, so that
/// the transport's receive limit rules. At least half the delay, so that a broken message does not spin.
inline constexpr Redeliver default_redeliver{
    ExponentialBackoff{std::chrono::seconds{1}, std::chrono::minutes{5}} | EqualJitter{}};

template <RetryPolicy Policy>
constexpr RetryDecision Redeliver<Policy>::give_back(RetryState state) const noexcept {
  const RetryDecision decision = decide(state);
  if (decision.verdict != RetryVerdict::stop) return decision;
  if (policy_.attempts_allowed() < 2) return default_redeliver.decide(state);
  state.failures = policy_.attempts_allowed() - 1;
  return decide(state);
}

}  // namespace idem
