// SPDX-License-Identifier: MIT
#include <idem/retry/jitter.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include <idem/retry/backoff.hpp>
#include <idem/retry/sample.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

static_assert(RetryStage<FullJitter> && RetryStage<EqualJitter> && RetryStage<DecorrelatedJitter> &&
              RetryStage<ProportionalJitter> && RetryStage<NoJitter>);

namespace {

constexpr std::uint64_t seed = 20240229;
constexpr std::size_t draws = 20'000;

struct Window {
  Duration lo;
  Duration hi;
  friend bool operator==(const Window&, const Window&) = default;
};

Window window_of(const auto& policy, const RetryState& state) {
  const RetryDecision decision = policy.decide(state);
  CHECK(decision.verdict == RetryVerdict::retry);
  return {decision.lo, decision.hi};
}

std::vector<double> drawn(const auto& policy, const RetryState& state) {
  SplitMix64 engine{seed};
  const RetryDecision decision = policy.decide(state);
  std::vector<double> seconds;
  for (std::size_t i = 0; i < draws; ++i) {
    seconds.push_back(std::chrono::duration<double>{sample(decision.lo, decision.hi, engine)}.count());
  }
  return seconds;
}

// The widest gap between the drawn and the uniform distribution on [lo, hi].
double kolmogorov_smirnov(std::vector<double> values, double lo, double hi) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double gap = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = (values[i] - lo) / (hi - lo);
    gap = std::max({gap, expected - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - expected});
  }
  return gap;
}

void check_uniform(const std::vector<double>& values, double lo, double hi) {
  CAPTURE(seed, lo, hi);
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / n);
  const double expected_deviation = 0.288675 * (hi - lo);
  CHECK(std::abs(mean - (lo + hi) / 2) < 4 * expected_deviation / std::sqrt(n));
  CHECK(std::abs(deviation / expected_deviation - 1) < 0.02);
  CHECK(kolmogorov_smirnov(values, lo, hi) < 1.95 / std::sqrt(n));  // exceeded by chance once in 1,000 seeds
}

// 1,000 clients fail in step every 5 s, long at the cap: the busiest 100 ms over the mean.
double herd(const auto& policy) {
  constexpr std::size_t rounds = 12;
  constexpr std::size_t per_round = 50;
  std::vector<int> busy((rounds + 1) * per_round + 1);
  SplitMix64 engine{seed};
  for (int client = 0; client < 1'000; ++client) {
    Duration last = 5s;
    for (std::size_t round = 0; round < rounds; ++round) {
      const RetryDecision decision = policy.decide({.failures = 20 + round, .last_delay = last});
      last = sample(decision.lo, decision.hi, engine);
      ++busy.at(round * per_round + static_cast<std::size_t>(last / 100ms));
    }
  }
  return *std::max_element(busy.begin(), busy.end()) / (1'000.0 / per_round);
}

}  // namespace

TEST_CASE("each jitter opens its own window around the backoff's delay", "[retry]") {
  constexpr ExponentialBackoff backoff{1s, 8s};
  CHECK(window_of(backoff | FullJitter{}, {.failures = 3}) == Window{0s, 4s});
  CHECK(window_of(backoff | EqualJitter{}, {.failures = 3}) == Window{2s, 4s});
  CHECK(window_of(backoff | NoJitter{}, {.failures = 3}) == Window{4s, 4s});
  CHECK(window_of(backoff | ProportionalJitter{25}, {.failures = 3}) == Window{3s, 5s});
  CHECK(window_of(backoff | ProportionalJitter{0}, {.failures = 3}) == Window{4s, 4s});
}

TEST_CASE("a proportional jitter is cut by the cap as a range", "[retry]") {
  CHECK(window_of(ExponentialBackoff{1s, 8s} | ProportionalJitter{50}, {.failures = 9}) == Window{4s, 8s});
  CHECK(window_of(Intervals{1min, 5min} | ProportionalJitter{20}, {.failures = 2}) == Window{4min, 6min});
  CHECK(window_of(ConstantBackoff{Duration::max()} | ProportionalJitter{100}, {}) ==
        Window{0s, Duration::max()});
}

TEST_CASE("a decorrelated jitter grows from the base by three times the last delay", "[retry]") {
  constexpr auto policy = ExponentialBackoff{1s, 20s} | DecorrelatedJitter{};
  CHECK(window_of(policy, {.failures = 1}) == Window{1s, 3s});
  CHECK(window_of(policy, {.failures = 2, .last_delay = 2500ms}) == Window{1s, 7500ms});
  CHECK(window_of(policy, {.failures = 9, .last_delay = 7s}) == Window{1s, 20s});
  CHECK(window_of(policy, {.failures = 9, .last_delay = Duration::max()}) == Window{1s, 20s});
  CHECK(window_of(policy, {.failures = 2}) == Window{1s, 9s});
  CHECK(window_of(policy, {.failures = ~0ULL}) == Window{1s, 20s});
  CHECK(window_of(ExponentialBackoff{1ns, Duration::max()} | DecorrelatedJitter{}, {.failures = ~0ULL}) ==
        Window{1ns, Duration::max()});
}

TEST_CASE("a percentage outside 0 to 100 is refused", "[retry]") {
  for (const int percent : {-1, 101}) {
    CHECK_THROWS_AS(ProportionalJitter{percent}, std::invalid_argument);
  }
}

TEST_CASE("delays are drawn uniformly over the window of each jitter", "[retry]") {
  constexpr ExponentialBackoff backoff{1s, 8s};
  check_uniform(drawn(backoff | FullJitter{}, {.failures = 9}), 0, 8);   // mean v/2, sd 0.2887 v
  check_uniform(drawn(backoff | EqualJitter{}, {.failures = 9}), 4, 8);  // mean 3v/4, sd 0.1443 v
  check_uniform(drawn(backoff | ProportionalJitter{50}, {.failures = 9}), 4, 8);
  check_uniform(drawn(backoff | DecorrelatedJitter{}, {.failures = 9, .last_delay = 2s}), 1, 6);
}

TEST_CASE("before the cap a decorrelated delay has the mean b (2 × 1.5^k - 1)", "[retry]") {
  constexpr auto policy = ExponentialBackoff{1s, std::chrono::hours{10'000}} | DecorrelatedJitter{};
  constexpr std::uint64_t steps = 6;
  std::vector<double> sums(steps);
  SplitMix64 engine{seed};
  CAPTURE(seed);
  for (std::size_t i = 0; i < draws; ++i) {
    Duration last{};
    for (std::uint64_t k = 1; k <= steps; ++k) {
      const RetryDecision decision = policy.decide({.failures = k, .last_delay = last});
      last = sample(decision.lo, decision.hi, engine);
      sums[k - 1] += std::chrono::duration<double>{last}.count();
    }
  }
  for (std::uint64_t k = 1; k <= steps; ++k) {
    CAPTURE(k);
    const double expected = 2 * std::pow(1.5, static_cast<double>(k)) - 1;
    CHECK(std::abs(sums[k - 1] / static_cast<double>(draws) / expected - 1) < 0.03);
  }
}

TEST_CASE("a fleet that fails in step does not come back in step", "[retry]") {
  constexpr ExponentialBackoff backoff{100ms, 5s};
  CAPTURE(seed);
  CHECK(herd(backoff | FullJitter{}) < 4);
  CHECK(herd(backoff | EqualJitter{}) < 4);
  CHECK(herd(backoff | DecorrelatedJitter{}) < 4);
  CHECK(herd(backoff | ProportionalJitter{50}) < 4);
  CHECK(herd(backoff | NoJitter{}) > 20);  // what the measure says of a herd
}
