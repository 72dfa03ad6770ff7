// SPDX-License-Identifier: MIT
#include <idem/retry/simulate.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

static_assert(worst_case_delay(ExponentialBackoff{500ms, 30s} | FullJitter{} | MaxAttempts{8}) == 61'500ms);
static_assert(worst_case_delay(LinearBackoff{1s, 10s} | MaxAttempts{4}) == 6s);
static_assert(worst_case_delay(ConstantBackoff{2s} | EqualJitter{} | MaxAttempts{3}) == 4s);
static_assert(worst_case_delay(Immediate{} | MaxAttempts{3}) == 0s);
static_assert(worst_case_delay(MaxAttempts{1}) == 0s);
static_assert(worst_case_delay(Intervals{1min, 5min, 30min} | ProportionalJitter{20}) == 43min + 12s);
static_assert(worst_case_delay(ExponentialBackoff{1s, 8s} | FullJitter{}) == Duration::max());

// With a time limit: fixed delays stop before it, drawn ones may end right on it.
static_assert(worst_case_delay(ConstantBackoff{10s} | MaxElapsed{25s}) == 20s);
static_assert(worst_case_delay(ConstantBackoff{10s} | FullJitter{} | MaxElapsed{25s}) == 25s);
static_assert(worst_case_delay(ConstantBackoff{10s} | FullJitter{} | MaxElapsed{25s} | MaxAttempts{3}) ==
              20s);
static_assert(worst_case_delay(ExponentialBackoff{1s, 8s} | EqualJitter{} | MaxElapsed{4s}) == 4s);
static_assert(worst_case_delay(ExponentialBackoff{1s, 8s} | DecorrelatedJitter{} | MaxElapsed{30s}) == 30s);

// The longest hints that are waited for count: 4 waits of 5 s, each spread by the backoff's own width.
static_assert(worst_case_delay(ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{5} |
                               HonourRetryAfter{5s}) == 21'500ms);
static_assert(worst_case_delay(ConstantBackoff{1s} | HonourRetryAfter{1min} | MaxElapsed{30s}) <= 30s);

// Never less than can happen, and never endless work, for great numbers of attempts.
static_assert(worst_case_delay(ConstantBackoff{1s} | MaxAttempts{1'000'001}) == 1'000'000s);
static_assert(worst_case_delay(ConstantBackoff{1s} | MaxAttempts{~0ULL}) == Duration::max());
static_assert(worst_case_delay(LinearBackoff{1ns, 1h} | MaxAttempts{1ULL << 40}) == Duration::max());
static_assert(worst_case_delay(Immediate{} | MaxElapsed{1h}) == 0s);
static_assert(worst_case_delay(ConstantBackoff{1ms} | FullJitter{} | MaxElapsed{1h}) == 1h);

constexpr auto policy = ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{5};

constexpr Duration total(std::uint64_t seed) {
  Duration sum{};
  for (const Duration delay : simulate(policy, seed)) sum += delay;
  return sum;
}
static_assert(total(1) > 0s && total(1) <= worst_case_delay(policy));
static_assert(total(1) != total(2));

std::vector<Duration> delays_of(const auto& of, std::uint64_t seed) {
  std::vector<Duration> delays;
  for (const Duration delay : simulate(of, seed)) {
    delays.push_back(delay);
    if (delays.size() == 100) break;
  }
  return delays;
}

}  // namespace

TEST_CASE("a simulation gives one delay a retry, the same for a seed", "[retry]") {
  CHECK(delays_of(policy, 3).size() == 4);
  CHECK(delays_of(policy, 3) == delays_of(policy, 3));
  CHECK(delays_of(policy, 3) != delays_of(policy, 4));
  CHECK(delays_of(MaxAttempts{1}, 3).empty());
  CHECK(delays_of(ExponentialBackoff{1s, 4s} | MaxAttempts{5}, 3) == std::vector<Duration>{1s, 2s, 4s, 4s});
}

TEST_CASE("an endless policy gives an endless simulation", "[retry]") {
  CHECK(delays_of(ExponentialBackoff{1s, 4s} | FullJitter{}, 3).size() == 100);
}

TEST_CASE("no simulated call waits longer than the worst case", "[retry]") {
  const auto check = [](const auto& of) {
    for (std::uint64_t seed = 1; seed <= 500; ++seed) {
      CAPTURE(seed);
      Duration sum{};
      for (const Duration delay : delays_of(of, seed)) {
        REQUIRE(delay >= 0s);
        sum += delay;
      }
      REQUIRE(sum <= worst_case_delay(of));
    }
  };
  check(policy);
  check(ExponentialBackoff{1s, 8s} | DecorrelatedJitter{} | MaxAttempts{20} | MaxElapsed{30s});
  check(ExponentialBackoff{1s, 8s} | EqualJitter{} | MaxElapsed{30s});
  check(LinearBackoff{1s, 3s} | ProportionalJitter{50} | MaxAttempts{9});
}

TEST_CASE("a drawn delay may end on the elapsed limit but not after it", "[retry]") {
  constexpr auto limited = ExponentialBackoff{1s, 8s} | EqualJitter{} | MaxElapsed{30s};
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    Duration sum{};
    for (const Duration delay : delays_of(limited, seed)) sum += delay;
    CHECK(sum <= 30s);
  }
}
