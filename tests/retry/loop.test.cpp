// SPDX-License-Identifier: MIT
#include <idem/retry/loop.hpp>

#include <chrono>
#include <cstdint>
#include <random>

#include <idem/retry/backoff.hpp>
#include <idem/retry/budget.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;
constexpr Time start{1'000s};
constexpr ExponentialBackoff backoff{1s, 30s};

constexpr Duration constant_evaluated() {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | FullJitter{} | MaxAttempts{3}};
  return loop.failed({}, start, engine).delay;
}
static_assert(constant_evaluated() <= 1s);

}  // namespace

TEST_CASE("a loop counts failures and stops where its policy does", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | MaxAttempts{3}};
  CHECK(loop.failed({}, start, engine).delay == 1s);
  CHECK(loop.failed({}, start + 1s, engine).delay == 2s);
  const RetryStep last = loop.failed({}, start + 3s, engine);
  CHECK_FALSE(last.retry());
  CHECK(last.decision.reason == RetryReason::max_attempts);
  CHECK(last.delay == 0s);
  CHECK(loop.failures() == 3);
}

// Part of cenkalti/backoff#188 and #191 too: what the elapsed limit is counted from.
TEST_CASE("elapsed time is counted from the first failure, not from the first attempt", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | MaxElapsed{10s}};
  CHECK(loop.failed({}, start + 1h, engine).retry());
  CHECK(loop.failed({}, start + 1h + 7s, engine).retry());
  CHECK(loop.failed({}, start + 1h + 9s, engine).decision.reason == RetryReason::max_elapsed);
}

TEST_CASE("a clock that jumps does not turn elapsed time negative or over", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | MaxElapsed{10s}};
  CHECK(loop.failed({}, Time::min(), engine).retry());
  CHECK_FALSE(loop.failed({}, Time::max(), engine).retry());
  RetryLoop back{backoff | MaxElapsed{10s}};
  CHECK(back.failed({}, start, engine).retry());
  CHECK(back.failed({}, start - 1h, engine).retry());
}

TEST_CASE("a loop hands the last delay on", "[retry]") {
  std::uint64_t random = ~0ULL;
  const auto engine = [&] { return random; };
  RetryLoop loop{backoff | DecorrelatedJitter{}};
  CHECK(loop.failed({}, start, engine).delay == 3s);
  CHECK(loop.failed({}, start, engine).delay == 9s);
  random = 0;
  CHECK(loop.failed({}, start, engine).delay == 1s);
  random = ~0ULL;
  CHECK(loop.failed({}, start, engine).delay == 3s);
}

TEST_CASE("loops that share an engine do not draw the same delays", "[retry]") {
  std::mt19937_64 engine{7};
  constexpr auto policy = backoff | FullJitter{};
  RetryLoop one{policy};
  RetryLoop other{policy};
  CHECK(one.failed({}, start, engine).delay != other.failed({}, start, engine).delay);
}

TEST_CASE("hints and the transport's hold reach the policy", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | HonourRetryAfter{1min} | WithinLease{1s}};
  CHECK(loop.failed({.kind = ErrorClass::throttled, .retry_after = 20s}, start, engine).delay == 20s);
  CHECK(loop.failed({.retry_after = 20s, .hold_left = 20s}, start, engine).decision.reason ==
        RetryReason::within_lease);
}

TEST_CASE("a hint is forgotten after the failure that brought it", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{backoff | HonourRetryAfter{1min}};
  CHECK(loop.failed({.retry_after = 20s}, start, engine).delay == 20s);
  CHECK(loop.failed({}, start, engine).delay == 2s);
}

TEST_CASE("permanent, configuration and cancelled failures draw nothing", "[retry]") {
  int drawn = 0;
  const auto engine = [&] { return static_cast<std::uint64_t>(++drawn); };
  for (const ErrorClass kind : {ErrorClass::permanent, ErrorClass::configuration, ErrorClass::cancelled}) {
    RetryLoop loop{backoff | FullJitter{}};
    const RetryStep step = loop.failed({.kind = kind}, start, engine);
    CHECK_FALSE(step.retry());
    CHECK(step.decision.reason == RetryReason::not_retryable);
  }
  CHECK(drawn == 0);
}

TEST_CASE("the first aborted doubt of a call is free and later ones count", "[retry]") {
  SplitMix64 engine{1};
  RetryLoop loop{MaxAttempts{1}};
  const RetryStep first = loop.failed({.kind = ErrorClass::in_doubt}, start, engine);
  CHECK(first.retry());
  CHECK(first.decision.reason == RetryReason::aborted_doubt);
  CHECK(first.delay == 0s);
  CHECK(loop.failures() == 0);
  const RetryStep second = loop.failed({.kind = ErrorClass::in_doubt}, start, engine);
  CHECK_FALSE(second.retry());
  CHECK(second.decision.reason == RetryReason::max_attempts);
  CHECK(loop.failures() == 1);
}

TEST_CASE("a budget is charged once a retry, last, and refunded by a success", "[retry]") {
  SplitMix64 engine{1};
  RetryBudget budget{2, 100};
  const auto policy = backoff | MaxAttempts{3} | HonourRetryAfter{1s} | WithBudget{budget};
  RetryLoop loop{policy};
  CHECK_FALSE(loop.failed({.retry_after = 1h}, start, engine).retry());
  CHECK_FALSE(loop.failed({.kind = ErrorClass::permanent}, start, engine).retry());
  CHECK(budget.tokens() == 2);
  RetryLoop next{policy};
  CHECK(next.failed({}, start, engine).retry());
  CHECK(budget.tokens() == 1);
  CHECK(next.failed({}, start, engine).retry());
  CHECK(budget.tokens() == 0);
  CHECK(next.failed({}, start, engine).decision.reason == RetryReason::max_attempts);
  RetryLoop third{policy};
  CHECK(third.failed({.retry_after = 1s}, start, engine).decision ==
        RetryDecision{
            .verdict = RetryVerdict::redeliver, .reason = RetryReason::budget_empty, .retry_after = 1s});
  third.succeeded();
  CHECK(budget.tokens() == 1);
}
