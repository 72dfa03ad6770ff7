// SPDX-License-Identifier: MIT
#include <idem/retry/redeliver.hpp>

#include <cstdint>
#include <type_traits>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

constexpr Redeliver later{Intervals{1min, 5min, 30min} | ProportionalJitter{20}};
static_assert(is_redeliver_v<std::remove_const_t<decltype(later)>> && !is_redeliver_v<MaxAttempts>);
static_assert(!RetryPolicy<std::remove_const_t<decltype(later)>>);
static_assert(std::is_trivially_copyable_v<decltype(later)>);
static_assert(later.has_limit && !default_redeliver.has_limit);
static_assert(Redeliver{MaxAttempts{3}}.has_limit);
static_assert(!Redeliver{ExponentialBackoff{1s, 1h} | FullJitter{}}.has_limit);

constexpr RetryDecision gave_up{.verdict = RetryVerdict::stop, .reason = RetryReason::intervals_exhausted};

}  // namespace

TEST_CASE("deliveries are counted as attempts are, and the fourth is too many for three intervals",
          "[retry]") {
  CHECK(later.decide({.failures = 1}) ==
        RetryDecision{.verdict = RetryVerdict::redeliver, .lo = 48s, .hi = 72s});
  CHECK(later.decide({.failures = 3}) ==
        RetryDecision{.verdict = RetryVerdict::redeliver, .lo = 24min, .hi = 36min});
  CHECK(later.decide({.failures = 4}) == gave_up);
  CHECK(later.decide({.failures = ~0ULL}) == gave_up);
}

TEST_CASE("a message counted from zero is treated as on its first delivery", "[retry]") {
  CHECK(later.decide({.failures = 0}) == later.decide({.failures = 1}));
}

TEST_CASE("a redelivery comes no sooner than the hint, with or without a stage for hints", "[retry]") {
  CHECK(later.decide({.failures = 1, .retry_after = 10min}) ==
        RetryDecision{
            .verdict = RetryVerdict::redeliver, .lo = 10min, .hi = 10min + 24s, .retry_after = 10min});
  constexpr Redeliver honouring{ExponentialBackoff{1s, 1min} | HonourRetryAfter{5s} | FullJitter{}};
  CHECK(honouring.decide({.failures = 1, .retry_after = 1h}).lo == 1h);
  CHECK(later.decide({.failures = 1, .retry_after = Duration::max()}).hi == Duration::max());
}

TEST_CASE("a hint not to retry in the call does not keep a message from coming back", "[retry]") {
  CHECK(later.decide({.failures = 1, .retry_after = -1s}) == later.decide({.failures = 1}));
}

TEST_CASE("a hint does not bring a message back that had its last delivery", "[retry]") {
  const RetryDecision decision = later.decide({.failures = 4, .retry_after = 1min});
  CHECK(decision.verdict == RetryVerdict::stop);
  CHECK(decision.retry_after == Duration{1min});
}

TEST_CASE("the kind of failure and the time in the call are not looked at", "[retry]") {
  CHECK(
      later.decide(
          {.failures = 2, .elapsed = 1h, .last_delay = 1h, .kind = ErrorClass::cancelled, .hold_left = 0s}) ==
      later.decide({.failures = 2}));
}

TEST_CASE("what is never rejected comes back with the last delay there was", "[retry]") {
  CHECK(later.give_back({.failures = 2}) == later.decide({.failures = 2}));
  CHECK(later.give_back({.failures = 4}) == later.decide({.failures = 3}));
  CHECK(later.give_back({.failures = ~0ULL, .retry_after = 2h}).lo == 2h);
  constexpr Redeliver counted{ExponentialBackoff{1s, 1min} | MaxAttempts{4}};
  CHECK(counted.give_back({.failures = 9}).hi == 4s);
}

TEST_CASE("what is never rejected comes back with the default delay where there was none", "[retry]") {
  constexpr Redeliver never{MaxAttempts{1}};
  CHECK(never.decide({.failures = 1}).verdict == RetryVerdict::stop);
  CHECK(never.give_back({.failures = 3}) == default_redeliver.decide({.failures = 3}));
}

TEST_CASE("left out, redelivery backs off without a limit and never at once", "[retry]") {
  CHECK(default_redeliver.decide({.failures = 1}) ==
        RetryDecision{.verdict = RetryVerdict::redeliver, .lo = 500ms, .hi = 1s});
  CHECK(default_redeliver.decide({.failures = ~0ULL}) ==
        RetryDecision{.verdict = RetryVerdict::redeliver, .lo = 150s, .hi = 5min});
}
