// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <idem/retry/detail/refuse.hpp>
#include <idem/retry/policy.hpp>

namespace idem {

/// Draws the delay from `[0, v]`, `v` being the backoff's: the least work for the other side, the usual
/// choice.
struct FullJitter : RetryStageBase<FullJitter> {
  static constexpr RetryCategory category = RetryCategory::jitter;

  constexpr void apply(const RetryState&, RetryDraft& draft) const noexcept {
    draft.window(Duration::zero(), draft.decision.hi);
  }
};

/// Draws the delay from `[v/2, v]`, where a minimum matters.
struct EqualJitter : RetryStageBase<EqualJitter> {
  static constexpr RetryCategory category = RetryCategory::jitter;

  constexpr void apply(const RetryState&, RetryDraft& draft) const noexcept {
    draft.window(draft.decision.hi / 2, draft.decision.hi);
  }
};

/// Draws the delay from `[base, 3 × the last delay]`, never more than the backoff's cap.
///
/// It grows by itself and uses only the base and the cap of `ExponentialBackoff` or `LinearBackoff`. Where
/// the last delay is not known, as between deliveries, it takes the widest range that count can have: `base ×
/// 3^failures`.
struct DecorrelatedJitter : RetryStageBase<DecorrelatedJitter> {
  static constexpr RetryCategory category = RetryCategory::jitter;
  static constexpr bool needs_growth = true;

  constexpr void apply(const RetryState& state, RetryDraft& draft) const noexcept {
    Duration hi = detail::saturating_multiply((std::max)(state.last_delay, Duration::zero()), 3);
    if (hi == Duration::zero()) {
      hi = detail::saturating_multiply(draft.base, 3);
      for (std::uint64_t k = 1; k < state.failures && hi < draft.cap; ++k)
        hi = detail::saturating_multiply(hi, 3);
    }
    draft.window(draft.base, (std::min)(draft.cap, hi));
  }
};

/// Draws the delay from `v ± percent`, never more than the backoff's cap.
///
/// Throws: `std::invalid_argument` unless `0 <= percent <= 100`; as a constant it does not compile.
class ProportionalJitter : public RetryStageBase<ProportionalJitter> {
 public:
  static constexpr RetryCategory category = RetryCategory::jitter;

  constexpr explicit ProportionalJitter(int percent) : percent_{percent} {
    if (percent < 0 || percent > 100) {
      detail::refuse("ProportionalJitter: percent must be within 0 and 100", percent);
    }
  }

  constexpr void apply(const RetryState&, RetryDraft& draft) const noexcept {
    const Duration value = draft.decision.hi;
    const Duration spread = detail::percent_of(value, percent_);
    draft.window(value - spread, (std::min)(draft.cap, detail::saturating_add(value, spread)));
  }

 private:
  int percent_;
};

/// Waits exactly the backoff's delay. Clients that fail together come back together.
struct NoJitter : RetryStageBase<NoJitter> {
  static constexpr RetryCategory category = RetryCategory::jitter;
};

}  // namespace idem
