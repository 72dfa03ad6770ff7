// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

#include <idem/retry/detail/refuse.hpp>
#include <idem/retry/policy.hpp>

namespace idem {

/// Ends after `n` attempts in all, the first one included: 1 means no retry.
///
/// Throws: `std::invalid_argument` unless `n >= 1`; as a constant it does not compile.
class MaxAttempts : public RetryStageBase<MaxAttempts> {
 public:
  static constexpr RetryCategory category = RetryCategory::attempts;
  static constexpr bool limits_attempts = true;

  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  constexpr explicit MaxAttempts(Number n) : attempts_{static_cast<std::uint64_t>(n)} {
    if (n < 1) detail::refuse("MaxAttempts: the first attempt counts, so n is at least 1", n);
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    if (state.failures >= attempts_) draft.end(RetryVerdict::stop, RetryReason::max_attempts);
  }
  [[nodiscard]] constexpr std::uint64_t attempts_allowed() const noexcept { return attempts_; }

 private:
  std::uint64_t attempts_;
};

/// Ends when `limit` has passed since the first failure, and never sleeps past it.
///
/// The first attempt does not count: a slow one must not eat the time for the retries.
///
/// Throws: `std::invalid_argument` unless `limit > 0`; as a constant it does not compile.
class MaxElapsed : public RetryStageBase<MaxElapsed> {
 public:
  static constexpr RetryCategory category = RetryCategory::elapsed;
  static constexpr bool limits_elapsed = true;

  constexpr explicit MaxElapsed(detail::AnyDuration limit) : limit_{limit.value()} {
    if (limit_ <= Duration::zero()) {
      detail::refuse("MaxElapsed: must be above zero; for no retry use MaxAttempts{1}", limit_);
    }
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    const Duration left = limit_ - std::clamp(state.elapsed, Duration::zero(), limit_);
    if (draft.decision.lo >= left) return draft.end(RetryVerdict::stop, RetryReason::max_elapsed);
    draft.decision.hi = (std::min)(draft.decision.hi, left);
  }
  [[nodiscard]] constexpr Duration elapsed_allowed() const noexcept { return limit_; }

 private:
  Duration limit_;
};

/// Retries only while the delay and `guard`, the time an attempt needs, fit in the transport's hold on the
/// message; otherwise gives the message back at once, before somebody else gets it too.
///
/// Without a known hold it changes nothing.
///
/// Throws: `std::invalid_argument` if `guard` is negative; as a constant it does not compile.
class WithinLease : public RetryStageBase<WithinLease> {
 public:
  static constexpr RetryCategory category = RetryCategory::lease;

  constexpr explicit WithinLease(detail::AnyDuration guard) : guard_{guard.value()} {
    if (guard_ < Duration::zero()) {
      detail::refuse("WithinLease: guard must not be negative; for none use 0s", guard_);
    }
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    if (!state.hold_left) return;
    const Duration room = detail::saturating_subtract(*state.hold_left, guard_);
    if (draft.decision.lo > room) return draft.end(RetryVerdict::redeliver, RetryReason::within_lease);
    draft.decision.hi = (std::min)(draft.decision.hi, room);
  }

 private:
  Duration guard_;
};

/// Waits at least as long as the other side asks, and still spreads the clients it asked.
///
/// A hint longer than `limit` ends the retries here: the message comes back after the whole of it, for asking
/// again earlier than told is what the hint forbids. A negative hint says not to retry.
///
/// Throws: `std::invalid_argument` if `limit` is negative; as a constant it does not compile.
class HonourRetryAfter : public RetryStageBase<HonourRetryAfter> {
 public:
  static constexpr RetryCategory category = RetryCategory::hint;

  constexpr explicit HonourRetryAfter(detail::AnyDuration limit) : limit_{limit.value()} {
    if (limit_ < Duration::zero()) {
      detail::refuse("HonourRetryAfter: limit must not be negative; to wait for no hint use 0s", limit_);
    }
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    if (!state.retry_after || *state.retry_after < Duration::zero()) return;
    if (*state.retry_after > limit_)
      draft.end(RetryVerdict::redeliver, RetryReason::retry_after_beyond_limit);
    wait_at_least(*state.retry_after, draft);
  }

  /// Raises the window to `hint`, keeping up to its own width of spread, at most half the hint.
  static constexpr void wait_at_least(Duration hint, RetryDraft& draft) noexcept {
    const Duration lo = draft.decision.lo;
    const Duration hi = draft.decision.hi;
    draft.window((std::max)(lo, hint),
                 (std::max)(hi, detail::saturating_add(hint, (std::min)(hi - lo, hint / 2))));
  }

  /// The longest hint it waits for.
  [[nodiscard]] constexpr Duration longest_hint() const noexcept { return limit_; }

 private:
  Duration limit_;
};

}  // namespace idem
