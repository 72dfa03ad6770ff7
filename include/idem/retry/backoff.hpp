// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <idem/retry/detail/refuse.hpp>
#include <idem/retry/policy.hpp>

namespace idem {

/// Doubles the delay with every failure: `base`, `2 base`, `4 base`, …, never more than `cap`.
///
/// Throws: `std::invalid_argument` unless `0 < base <= cap`; as a constant it does not compile.
class ExponentialBackoff : public RetryStageBase<ExponentialBackoff> {
 public:
  static constexpr RetryCategory category = RetryCategory::backoff;
  static constexpr bool grows = true;

  constexpr ExponentialBackoff(detail::AnyDuration base, detail::AnyDuration cap)
      : base_{base.value()}, cap_{cap.value()} {
    if (base_ <= Duration::zero()) {
      detail::refuse("ExponentialBackoff: base must be above zero; for no delay use Immediate", base_);
    }
    if (cap_ < base_) detail::refuse("ExponentialBackoff: cap must not be below base", cap_);
  }

  [[nodiscard]] constexpr Duration delay_after(std::uint64_t failures) const noexcept {
    const std::uint64_t doublings = failures == 0 ? 0 : failures - 1;
    // Compared before shifting: past this point the product does not fit, and the cap is the answer.
    if (doublings >= 63 || base_.count() > (cap_.count() >> doublings)) return cap_;
    return Duration{base_.count() << doublings};
  }
  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    draft.base = base_;
    draft.cap = cap_;
    draft.window(delay_after(state.failures), delay_after(state.failures));
  }

 private:
  Duration base_;
  Duration cap_;
};

/// Adds `step` to the delay with every failure: `step`, `2 step`, `3 step`, …, never more than `cap`.
///
/// Throws: `std::invalid_argument` unless `0 < step <= cap`; as a constant it does not compile.
class LinearBackoff : public RetryStageBase<LinearBackoff> {
 public:
  static constexpr RetryCategory category = RetryCategory::backoff;
  static constexpr bool grows = true;

  constexpr LinearBackoff(detail::AnyDuration step, detail::AnyDuration cap)
      : step_{step.value()}, cap_{cap.value()} {
    if (step_ <= Duration::zero()) {
      detail::refuse("LinearBackoff: step must be above zero; for no delay use Immediate", step_);
    }
    if (cap_ < step_) detail::refuse("LinearBackoff: cap must not be below step", cap_);
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    const Duration value =
        (std::min)(cap_, detail::saturating_multiply(step_, (std::max<std::uint64_t>)(1, state.failures)));
    draft.base = step_;
    draft.cap = cap_;
    draft.window(value, value);
  }

 private:
  Duration step_;
  Duration cap_;
};

/// Waits the same delay after every failure.
///
/// Throws: `std::invalid_argument` unless `delay > 0`; as a constant it does not compile.
class ConstantBackoff : public RetryStageBase<ConstantBackoff> {
 public:
  static constexpr RetryCategory category = RetryCategory::backoff;

  constexpr explicit ConstantBackoff(detail::AnyDuration delay) : delay_{delay.value()} {
    if (delay_ <= Duration::zero()) {
      detail::refuse("ConstantBackoff: delay must be above zero; for none use Immediate", delay_);
    }
  }

  constexpr void apply(const RetryState&, RetryDraft& draft) const noexcept { draft.window(delay_, delay_); }

 private:
  Duration delay_;
};

/// Tries again at once.
class Immediate : public RetryStageBase<Immediate> {
 public:
  static constexpr RetryCategory category = RetryCategory::backoff;
};

/// Waits the given delays, one after each failure, and ends after the last.
///
/// Throws: `std::invalid_argument` if one is negative; as a constant it does not compile.
template <std::size_t N>
class Intervals : public RetryStageBase<Intervals<N>> {
 public:
  static_assert(N > 0, "Intervals needs at least one delay; for no retry use MaxAttempts{1}");
  static_assert(N <= 1024, "Intervals takes at most 1024 delays; for more use a backoff and MaxAttempts");

  static constexpr RetryCategory category = RetryCategory::backoff;
  static constexpr bool limits_attempts = true;

  template <class... Delays>
    requires(sizeof...(Delays) == N && (std::convertible_to<Delays, detail::AnyDuration> && ...))
  constexpr explicit Intervals(Delays... delays) : delays_{detail::AnyDuration{delays}.value()...} {
    for (const Duration delay : delays_) {
      if (delay < Duration::zero()) {
        detail::refuse("Intervals: a delay must not be negative; for none use 0s", delay);
      }
    }
  }

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    const std::uint64_t index = state.failures == 0 ? 0 : state.failures - 1;
    if (index >= N) return draft.end(RetryVerdict::stop, RetryReason::intervals_exhausted);
    draft.window(delays_[index], delays_[index]);
  }
  [[nodiscard]] constexpr std::uint64_t attempts_allowed() const noexcept { return N + 1; }

 private:
  std::array<Duration, N> delays_;
};

template <class... Delays>
Intervals(Delays...) -> Intervals<sizeof...(Delays)>;

}  // namespace idem
