// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include <idem/retry/detail/refuse.hpp>
#include <idem/retry/policy.hpp>

namespace idem {

/// Tokens shared by many calls, so that a broad outage does not multiply the load by the number of attempts.
///
/// It starts full with `tokens`. A retry costs one; a success gives back `refund_percent` of one, never above
/// `tokens`. In the long run at most `refund_percent` retries follow 100 successes.
///
/// Throws: `std::invalid_argument` unless `tokens >= 1` and `0 <= refund_percent <= 100`; as a constant it
/// does not compile.
/// Thread safety: all members may be called at once. It must outlive the policies that use
/// it.
class RetryBudget {
 public:
  constexpr RetryBudget(std::int64_t tokens, int refund_percent)
      : full_{tokens * scale_checked(tokens)}, refund_{refund_percent}, left_{full_} {
    if (refund_percent < 0 || refund_percent > 100) {
      detail::refuse("RetryBudget: refund_percent must be within 0 and 100", refund_percent);
    }
  }
  RetryBudget(const RetryBudget&) = delete;
  RetryBudget& operator=(const RetryBudget&) = delete;

  /// Takes one token; false, with nothing taken, if there is less than one.
  [[nodiscard]] bool withdraw() noexcept {
    std::int64_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left < token_) return false;
    } while (!left_.compare_exchange_weak(left, left - token_, std::memory_order_relaxed));
    return true;
  }

  /// Gives the refund of one success back.
  void refund() noexcept {
    std::int64_t left = left_.load(std::memory_order_relaxed);
    while (left < full_ &&
           !left_.compare_exchange_weak(left, (std::min)(full_, left + refund_), std::memory_order_relaxed)) {
    }
  }

  /// Whole tokens left, for metrics.
  [[nodiscard]] std::int64_t tokens() const noexcept {
    return left_.load(std::memory_order_relaxed) / token_;
  }

 private:
  // Hundredths of a token, so that every percentage is exact.
  static constexpr std::int64_t token_ = 100;

  static constexpr std::int64_t scale_checked(std::int64_t tokens) {
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)() / token_;
    if (tokens < 1) {
      detail::refuse("RetryBudget: tokens must be at least 1; for no retry use MaxAttempts{1}", tokens);
    }
    if (tokens > most) detail::refuse("RetryBudget: too many tokens; leave WithBudget out", tokens);
    return token_;
  }

  std::int64_t full_;
  std::int64_t refund_;
  std::atomic<std::int64_t> left_;
};

/// Retries only while the shared budget has a token, taken last and once; without one the message is
/// redelivered.
class WithBudget : public RetryStageBase<WithBudget> {
 public:
  static constexpr RetryCategory category = RetryCategory::budget;

  constexpr explicit WithBudget(RetryBudget& budget) noexcept : budget_{&budget} {}

  [[nodiscard]] bool withdraw() const noexcept { return budget_->withdraw(); }
  void succeeded() const noexcept { budget_->refund(); }

 private:
  RetryBudget* budget_;
};

}  // namespace idem
