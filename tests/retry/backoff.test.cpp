// SPDX-License-Identifier: MIT
#include <idem/retry/backoff.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

static_assert(RetryStage<ExponentialBackoff> && RetryStage<LinearBackoff> && RetryStage<ConstantBackoff> &&
              RetryStage<Immediate> && RetryStage<Intervals<3>>);

namespace {

Duration delay_of(const auto& backoff, std::uint64_t failures) {
  const RetryDecision decision = backoff.decide({.failures = failures});
  CHECK(decision.verdict == RetryVerdict::retry);
  CHECK(decision.lo == decision.hi);
  return decision.hi;
}

template <class Make>
std::string refusal_of(Make make) {
  try {
    (void)make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "not refused";
}

// Where shifts, int and double arithmetic, and counters of 31, 32 and 64 bits end.
std::vector<std::uint64_t> attempts_near_an_overflow() {
  std::vector<std::uint64_t> attempts;
  for (std::uint64_t k = 1; k <= 70; ++k) attempts.push_back(k);
  for (std::uint64_t k = 1023; k <= 1026; ++k) attempts.push_back(k);
  for (const std::uint64_t k : {(1ULL << 31) - 1, 1ULL << 31, 1ULL << 32, ~0ULL - 1, ~0ULL})
    attempts.push_back(k);
  return attempts;
}

}  // namespace

TEST_CASE("an exponential backoff doubles from its base to its cap", "[retry]") {
  constexpr ExponentialBackoff backoff{100ms, 5s};
  CHECK(delay_of(backoff, 1) == 100ms);
  CHECK(delay_of(backoff, 2) == 200ms);
  CHECK(delay_of(backoff, 6) == 3200ms);
  CHECK(delay_of(backoff, 7) == 5s);
  CHECK(delay_of(backoff, 0) == 100ms);
}

// App-vNext/Polly#2163: the delay was negative from attempt 1025 on.
// App-vNext/Polly#1866: the overflowing delay was replaced by the longest there is, past the cap.
TEST_CASE("a growing delay never falls, never turns negative and never passes its cap", "[retry]") {
  const auto check = [](const auto& backoff, Duration cap) {
    Duration last{};
    for (const std::uint64_t failures : attempts_near_an_overflow()) {
      CAPTURE(failures);
      const Duration delay = delay_of(backoff, failures);
      CHECK(delay > Duration::zero());
      CHECK(delay >= last);
      CHECK(delay <= cap);
      last = delay;
    }
    CHECK(last == cap);
  };
  check(ExponentialBackoff{2s, 5min}, 5min);
  check(ExponentialBackoff{1ns, Duration::max()}, Duration::max());
  check(ExponentialBackoff{3ns, Duration::max()}, Duration::max());
  check(ExponentialBackoff{std::chrono::hours{24}, std::chrono::hours::max()}, Duration::max());
  check(ExponentialBackoff{Duration::max(), Duration::max()}, Duration::max());
  check(LinearBackoff{1s, 1h}, 1h);
  check(LinearBackoff{7ns, Duration::max()}, Duration::max());
  check(ConstantBackoff{3s}, 3s);
}

// backoffxx: the factor was an int, so that the 32nd delay was computed from 1 << 31.
TEST_CASE("doubling goes on exactly past 31 and up to 62 times", "[retry]") {
  constexpr ExponentialBackoff backoff{1ns, Duration::max()};
  for (std::uint64_t doublings = 0; doublings <= 62; ++doublings) {
    CAPTURE(doublings);
    CHECK(delay_of(backoff, doublings + 1).count() == std::int64_t{1} << doublings);
  }
  CHECK(delay_of(backoff, 64) == Duration::max());
}

TEST_CASE("a linear backoff adds its step up to its cap", "[retry]") {
  constexpr LinearBackoff backoff{1s, 10s};
  CHECK(delay_of(backoff, 1) == 1s);
  CHECK(delay_of(backoff, 4) == 4s);
  CHECK(delay_of(backoff, 11) == 10s);
  CHECK(delay_of(backoff, 0) == 1s);
}

TEST_CASE("a constant backoff stays the same and an immediate one is none", "[retry]") {
  CHECK(delay_of(ConstantBackoff{2s}, 9) == 2s);
  CHECK(delay_of(Immediate{}, 9) == 0s);
}

TEST_CASE("intervals are taken one after the other and end after the last", "[retry]") {
  constexpr Intervals intervals{1min, 5min, 30min};
  CHECK(delay_of(intervals, 1) == 1min);
  CHECK(delay_of(intervals, 3) == 30min);
  for (const std::uint64_t failures : {std::uint64_t{4}, ~std::uint64_t{0}}) {
    CHECK(intervals.decide({.failures = failures}) ==
          RetryDecision{.verdict = RetryVerdict::stop, .reason = RetryReason::intervals_exhausted});
  }
  CHECK(intervals.attempts_allowed() == 4);
}

TEST_CASE("durations of any unit are taken", "[retry]") {
  CHECK(delay_of(ConstantBackoff{std::chrono::duration<double>{1.5}}, 1) == 1500ms);
  CHECK(delay_of(ExponentialBackoff{100us, std::chrono::hours{1}}, 2) == 200us);
  CHECK(delay_of(Intervals{0s, 250ms, std::chrono::duration<float>{0.5F}}, 3) == 500ms);
}

TEST_CASE("a backoff that makes no sense is refused, with its name, the value and the way out", "[retry]") {
  const Duration zero{};
  const Duration negative = -90s;
  CHECK(refusal_of([&] {
          return ExponentialBackoff{zero, 1s};
        }) == "ExponentialBackoff: base must be above zero; for no delay use Immediate (given: 0ns)");
  CHECK(refusal_of([&] {
          return ExponentialBackoff{negative, 1s};
        }).find("(given: -90s)") != std::string::npos);
  CHECK(refusal_of([&] {
          return ExponentialBackoff{5s, 1500ms};
        }) == "ExponentialBackoff: cap must not be below base (given: 1500ms)");
  CHECK(refusal_of([&] { return LinearBackoff{zero, 1s}; }).find("LinearBackoff: step") == 0);
  CHECK(refusal_of([&] { return LinearBackoff{2s, 1s}; }).find("LinearBackoff: cap") == 0);
  CHECK(refusal_of([&] { return ConstantBackoff{zero}; }).find("ConstantBackoff: delay") == 0);
  CHECK(refusal_of([&] { return Intervals{1s, negative}; }).find("Intervals: a delay") == 0);
}
