// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include <idem/retry/limit.hpp>
#include <idem/retry/policy.hpp>
#include <idem/retry/sample.hpp>

namespace idem {

namespace detail {

/// The longest hint a policy waits for; negative: it waits for none.
template <class Policy>
[[nodiscard]] constexpr Duration longest_hint(const Policy& policy) noexcept {
  if constexpr (std::is_same_v<Policy, HonourRetryAfter>) {
    return policy.longest_hint();
  } else if constexpr (requires { policy.template stage<HonourRetryAfter>(); }) {
    return policy.template stage<HonourRetryAfter>().longest_hint();
  } else {
    return Duration{-1};
  }
}

}  // namespace detail

/// The longest that the delays of one call can add up to, the longest hints that the policy waits for
/// included.
///
/// `Duration::max()` for a policy without a limit. Exact but for a hint or `DecorrelatedJitter` next to
/// `MaxElapsed`, and for more than 1024 attempts: there it may be more than can happen, never less.
template <RetryPolicy Policy>
[[nodiscard]] constexpr Duration worst_case_delay(const Policy& policy) noexcept {
  if constexpr (!is_bounded_v<Policy>) {
    return (Duration::max)();
  } else {
    const Duration limit = policy.elapsed_allowed();
    const std::uint64_t attempts = policy.attempts_allowed();
    const Duration hint = detail::longest_hint(policy);
    Duration least{};  // all sums between these two can have passed before the next delay
    Duration most{};
    Duration last{};
    for (std::uint64_t k = 1; k < attempts; ++k) {
      const RetryDecision next = policy.decide({.failures = k, .elapsed = least, .last_delay = last});
      if (next.verdict != RetryVerdict::retry) break;
      if (k > 1024) {
        // Nothing grows past what the last attempt waits.
        RetryState furthest{.failures = attempts - 1, .last_delay = (Duration::max)()};
        if (hint >= Duration::zero()) furthest.retry_after = (std::min)(hint, limit - Duration{1});
        return (std::min)(limit, detail::saturating_add(most, detail::saturating_multiply(
                                                                  policy.decide(furthest).hi, attempts - k)));
      }
      // The latest moment at which the policy still goes on: there the longest delay ends latest.
      const Duration at = (std::min)(most, limit - next.lo - Duration{1});
      RetryState latest{.failures = k, .elapsed = at, .last_delay = last};
      Duration longest = policy.decide(latest).hi;
      if (hint >= Duration::zero()) {
        latest.retry_after = (std::min)(hint, limit - at - Duration{1});
        longest = (std::max)(longest, policy.decide(latest).hi);
      }
      least = detail::saturating_add(least, next.lo);
      most = (std::max)(most, detail::saturating_add(at, longest));
      last = longest;
    }
    return most;
  }
}

/// The delays of one call that fails every time, in attempts that take no time: a range of `Duration`.
///
/// Lazy, without allocation, the same for a seed on every compiler. Endless if the policy has no limit.
template <RetryPolicy Policy>
class RetrySimulation {
 public:
  class Iterator {
   public:
    using value_type = Duration;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    using pointer = const Duration*;
    using reference = Duration;

    constexpr Iterator(const Policy& policy, std::uint64_t seed) noexcept : policy_{&policy}, engine_{seed} {
      draw();
    }

    [[nodiscard]] constexpr Duration operator*() const noexcept { return state_.last_delay; }
    constexpr Iterator& operator++() noexcept {
      ++state_.failures;
      draw();
      return *this;
    }
    constexpr Iterator operator++(int) noexcept {
      Iterator before = *this;
      ++*this;
      return before;
    }
    [[nodiscard]] constexpr bool operator==(std::default_sentinel_t) const noexcept { return ended_; }

   private:
    constexpr void draw() noexcept {
      const RetryDecision next = policy_->decide(state_);
      ended_ = next.verdict != RetryVerdict::retry;
      if (ended_) return;
      state_.last_delay = sample(next.lo, next.hi, engine_);
      state_.elapsed = detail::saturating_add(state_.elapsed, state_.last_delay);
    }

    const Policy* policy_;
    SplitMix64 engine_;
    RetryState state_{};
    bool ended_ = false;
  };

  constexpr RetrySimulation(const Policy& policy, std::uint64_t seed) noexcept
      : policy_{policy}, seed_{seed} {}

  [[nodiscard]] constexpr Iterator begin() const noexcept { return {policy_, seed_}; }
  [[nodiscard]] constexpr std::default_sentinel_t end() const noexcept { return {}; }

 private:
  Policy policy_;
  std::uint64_t seed_;
};

/// Plays one failing call through: `for (Duration delay : simulate(policy, seed))`. A budget is not charged.
template <RetryPolicy Policy>
[[nodiscard]] constexpr RetrySimulation<Policy> simulate(const Policy& policy, std::uint64_t seed) noexcept {
  return {policy, seed};
}

}  // namespace idem
