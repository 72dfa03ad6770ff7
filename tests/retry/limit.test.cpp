// SPDX-License-Identifier: MIT
#include <idem/retry/limit.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

static_assert(RetryStage<MaxAttempts> && RetryStage<MaxElapsed> && RetryStage<WithinLease> &&
              RetryStage<HonourRetryAfter>);

namespace {

constexpr ExponentialBackoff backoff{1s, 30s};

template <class Make>
std::string refusal_of(Make make) {
  try {
    (void)make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("max attempts counts the first attempt too", "[retry]") {
  constexpr MaxAttempts three{3};
  CHECK(three.decide({.failures = 1}).verdict == RetryVerdict::retry);
  CHECK(three.decide({.failures = 2}).verdict == RetryVerdict::retry);
  CHECK(three.decide({.failures = 3}) ==
        RetryDecision{.verdict = RetryVerdict::stop, .reason = RetryReason::max_attempts});
  CHECK(three.decide({.failures = ~0ULL}).verdict == RetryVerdict::stop);
  CHECK(MaxAttempts{1}.decide({}).verdict == RetryVerdict::stop);
  CHECK(MaxAttempts{~0ULL}.decide({.failures = ~0ULL - 1}).verdict == RetryVerdict::retry);
  CHECK(MaxAttempts{~0ULL}.decide({.failures = ~0ULL}).verdict == RetryVerdict::stop);
}

TEST_CASE("max attempts alone is a policy that tries again at once", "[retry]") {
  CHECK(MaxAttempts{2}.decide({}) == RetryDecision{});
}

// kubernetes/kubernetes#131122: reaching the cap set the steps left to zero.
TEST_CASE("reaching the cap does not end the retries", "[retry]") {
  constexpr auto policy = ExponentialBackoff{1s, 4s} | MaxAttempts{100};
  for (std::uint64_t failures = 3; failures < 100; ++failures) {
    CAPTURE(failures);
    CHECK(policy.decide({.failures = failures}) == RetryDecision{.lo = 4s, .hi = 4s});
  }
}

// cenkalti/backoff#188, #191: retries went on, and slept, past the elapsed limit.
TEST_CASE("no delay ends after the elapsed limit", "[retry]") {
  constexpr auto policy = backoff | FullJitter{} | MaxElapsed{10s};
  CHECK(policy.decide({.failures = 3, .elapsed = 5s}).hi == 4s);
  CHECK(policy.decide({.failures = 5, .elapsed = 7s}).hi == 3s);
  CHECK(policy.decide({.failures = 5, .elapsed = 10s - 1ns}).hi == 1ns);
  for (const Duration elapsed : {Duration{10s}, Duration{11s}, Duration::max()}) {
    CHECK(policy.decide({.failures = 5, .elapsed = elapsed}) ==
          RetryDecision{.verdict = RetryVerdict::stop, .reason = RetryReason::max_elapsed});
  }
  CHECK((backoff | MaxElapsed{10s}).decide({.failures = 3, .elapsed = 6s}).verdict == RetryVerdict::stop);
  CHECK((backoff | MaxElapsed{10s}).decide({.failures = 3, .elapsed = 5s}).verdict == RetryVerdict::retry);
}

// cenkalti/backoff#159: a hint longer than the limit ended the retries and nobody heard of the hint.
TEST_CASE("a hint that ends the retries is reported whole", "[retry]") {
  constexpr auto policy = backoff | HonourRetryAfter{std::chrono::hours{1}} | MaxElapsed{15min};
  const RetryDecision decision = policy.decide({.retry_after = 30min});
  CHECK(decision.verdict == RetryVerdict::stop);
  CHECK(decision.reason == RetryReason::max_elapsed);
  CHECK(decision.retry_after == Duration{30min});
}

TEST_CASE("a hint counts against the elapsed limit in whatever order they were joined", "[retry]") {
  constexpr RetryState late{.elapsed = 29s, .retry_after = 60s};
  constexpr auto one = MaxElapsed{30s} | HonourRetryAfter{2min} | FullJitter{} | backoff;
  constexpr auto other = backoff | FullJitter{} | HonourRetryAfter{2min} | MaxElapsed{30s};
  CHECK(one.decide(late).verdict == RetryVerdict::stop);
  CHECK(one.decide(late) == other.decide(late));
}

TEST_CASE("a hint is a floor, and the clients that got it are still spread", "[retry]") {
  constexpr auto policy = backoff | FullJitter{} | HonourRetryAfter{1min};
  CHECK(policy.decide({.failures = 3, .retry_after = 10s}) ==
        RetryDecision{.lo = 10s, .hi = 14s, .retry_after = 10s});
  CHECK(policy.decide({.failures = 5, .retry_after = 10s}) ==
        RetryDecision{.lo = 10s, .hi = 16s, .retry_after = 10s});
  CHECK(policy.decide({.failures = 5, .retry_after = 2s}) ==
        RetryDecision{.lo = 2s, .hi = 16s, .retry_after = 2s});
  CHECK(policy.decide({.failures = 5, .retry_after = 0s}) ==
        RetryDecision{.lo = 0s, .hi = 16s, .retry_after = 0s});
}

// hashicorp/go-retryablehttp#247: the other side could make a client wait for ever.
// urllib3/urllib3#1338: a hint capped in silence makes the client come back earlier than it was told.
TEST_CASE("a hint beyond the limit is neither waited for nor shortened", "[retry]") {
  constexpr auto policy = backoff | FullJitter{} | HonourRetryAfter{1min};
  CHECK(policy.decide({.retry_after = 1min}).verdict == RetryVerdict::retry);
  CHECK(policy.decide({.retry_after = 1min + 1ns}) ==
        RetryDecision{.verdict = RetryVerdict::redeliver,
                      .reason = RetryReason::retry_after_beyond_limit,
                      .retry_after = 1min + 1ns});
}

// hashicorp/go-retryablehttp#297: a great number of seconds overflowed to a negative wait.
TEST_CASE("the longest hint there is does not overflow", "[retry]") {
  constexpr auto policy = backoff | FullJitter{} | HonourRetryAfter{Duration::max()};
  const RetryDecision decision = policy.decide({.failures = 9, .retry_after = Duration::max()});
  CHECK(decision.lo == Duration::max());
  CHECK(decision.hi == Duration::max());
}

TEST_CASE("a negative hint means do not retry, with or without a stage for hints", "[retry]") {
  for (const RetryDecision& decision : {(backoff | HonourRetryAfter{1min}).decide({.retry_after = -1ns}),
                                        backoff.decide({.retry_after = Duration::min()})}) {
    CHECK(decision == RetryDecision{.verdict = RetryVerdict::stop, .reason = RetryReason::no_retry_hint});
  }
}

TEST_CASE("without a stage for hints a hint ends the retries and is reported", "[retry]") {
  CHECK((backoff | MaxAttempts{9}).decide({.kind = ErrorClass::throttled, .retry_after = 1s}) ==
        RetryDecision{
            .verdict = RetryVerdict::redeliver, .reason = RetryReason::hint_not_honoured, .retry_after = 1s});
}

TEST_CASE("a hint never brings an ended retry back", "[retry]") {
  constexpr auto policy = backoff | MaxAttempts{2} | HonourRetryAfter{1min};
  for (const Duration hint : {Duration{0s}, Duration{5s}, Duration{1h}}) {
    const RetryDecision decision = policy.decide({.failures = 2, .retry_after = hint});
    CHECK(decision.verdict == RetryVerdict::stop);
    CHECK(decision.retry_after == hint);
  }
}

// MassTransit/MassTransit#2385, spring-projects/spring-kafka#2542: retries outlived the transport's hold, and
// the message was handled a second time next to them.
TEST_CASE("no retry outlives the transport's hold on the message", "[retry]") {
  constexpr auto policy = backoff | EqualJitter{} | WithinLease{2s};
  CHECK(policy.decide({.failures = 4}).hi == 8s);
  CHECK(policy.decide({.failures = 4, .hold_left = 20s}).hi == 8s);
  CHECK(policy.decide({.failures = 4, .hold_left = 9s}) == RetryDecision{.lo = 4s, .hi = 7s});
  CHECK(policy.decide({.failures = 4, .hold_left = 6s}) == RetryDecision{.lo = 4s, .hi = 4s});
  for (const Duration left : {Duration{6s - 1ns}, Duration{0s}, Duration{-1s}, Duration::min()}) {
    CHECK(policy.decide({.failures = 4, .hold_left = left}) ==
          RetryDecision{.verdict = RetryVerdict::redeliver, .reason = RetryReason::within_lease});
  }
}

TEST_CASE("a hint that does not fit in the hold gives the message back", "[retry]") {
  constexpr auto policy = WithinLease{2s} | HonourRetryAfter{1min} | backoff | FullJitter{};
  const RetryDecision decision = policy.decide({.retry_after = 29s, .hold_left = 30s});
  CHECK(decision.reason == RetryReason::within_lease);
  CHECK(decision.retry_after == Duration{29s});
}

TEST_CASE("a limit that makes no sense is refused, with its name, the value and the way out", "[retry]") {
  CHECK(refusal_of([] { return MaxAttempts{0}; }) ==
        "MaxAttempts: the first attempt counts, so n is at least 1 (given: 0)");
  CHECK(refusal_of([] { return MaxAttempts{-3}; }).find("(given: -3)") != std::string::npos);
  CHECK(refusal_of([] { return MaxElapsed{0s}; }).find("MaxElapsed: must be above zero") == 0);
  CHECK(refusal_of([] { return WithinLease{-1ms}; }).find("(given: -1ms)") != std::string::npos);
  CHECK(refusal_of([] { return HonourRetryAfter{-1s}; }).find("HonourRetryAfter: limit") == 0);
}
