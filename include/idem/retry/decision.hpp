// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <idem/duration.hpp>
#include <idem/error.hpp>

namespace idem {

/// What a retry policy is asked about. Policies hold no state: all of it comes in here.
struct RetryState {
  std::uint64_t failures = 1;  ///< failures so far, this one included; for `Redeliver` the delivery count
  Duration elapsed{};          ///< since the first failure
  Duration last_delay{};       ///< the delay before this attempt; 0: none yet
  ErrorClass kind = ErrorClass::transient;
  std::optional<Duration> retry_after{};  ///< the other side's hint; negative: do not retry
  std::optional<Duration> hold_left{};    ///< what is left of the transport's hold on the message
};

/// What to do about a failure. The later one wins where stages disagree.
enum class RetryVerdict {
  retry,      ///< try again in this call, after the delay
  redeliver,  ///< end the call, the transport brings the message back
  stop        ///< the policy has ended
};

/// Why a policy decided so. The earliest wins where several give the same verdict.
enum class RetryReason {
  backoff,
  aborted_doubt,
  not_retryable,
  no_retry_hint,
  max_attempts,
  intervals_exhausted,
  max_elapsed,
  hint_not_honoured,
  retry_after_beyond_limit,
  within_lease,
  budget_empty
};

/// A short phrase for a failure's message.
[[nodiscard]] constexpr std::string_view to_string(RetryReason reason) noexcept {
  switch (reason) {
    case RetryReason::backoff: return "backing off";
    case RetryReason::aborted_doubt: return "the commit in doubt had not happened";
    case RetryReason::not_retryable: return "this kind of failure is not retried";
    case RetryReason::no_retry_hint: return "the other side asked not to retry";
    case RetryReason::max_attempts: return "max attempts reached";
    case RetryReason::intervals_exhausted: return "last interval used";
    case RetryReason::max_elapsed: return "max elapsed time reached";
    case RetryReason::hint_not_honoured: return "retry-after given and the policy has no HonourRetryAfter";
    case RetryReason::retry_after_beyond_limit: return "retry-after is longer than the policy waits";
    case RetryReason::within_lease: return "the next try does not fit in the transport's hold";
    case RetryReason::budget_empty: return "retry budget is empty";
  }
  return "unknown";
}

/// A policy's answer: what to do and, for a delay, the window `[lo, hi]` it is drawn from, uniformly and
/// once.
///
/// A cap bounds the window, never the drawn delay: clamped samples pile up at the cap and send a whole fleet
/// back at the same moment.
struct RetryDecision {
  RetryVerdict verdict = RetryVerdict::retry;
  RetryReason reason = RetryReason::backoff;
  Duration lo{};  ///< 0, as `hi`, where there is no delay to draw
  Duration hi{};
  std::optional<Duration>
      retry_after{};  ///< the hint as it was given, uncapped; nobody may come back earlier

  friend constexpr bool operator==(const RetryDecision&, const RetryDecision&) = default;
};

}  // namespace idem
