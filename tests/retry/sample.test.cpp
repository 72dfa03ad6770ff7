// SPDX-License-Identifier: MIT
#include <idem/retry/sample.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

constexpr auto first_draws(std::uint64_t seed) {
  SplitMix64 engine{seed};
  std::array<Duration, 4> draws{};
  for (Duration& draw : draws) draw = sample(0ns, 999ns, engine);
  return draws;
}

}  // namespace

TEST_CASE("a seed gives the same delays on every compiler", "[retry]") {
  // From the reference implementation of SplitMix64: its first outputs for the seed 1234567.
  constexpr std::array<std::uint64_t, 3> reference{6457827717110365317U, 3203168211198807973U,
                                                   9817491932198370423U};
  SplitMix64 engine{1234567};
  for (const std::uint64_t expected : reference) CHECK(engine() == expected);
  // The high 64 bits of each output times 1,000.
  static_assert(first_draws(1234567)[0] == 350ns);
  static_assert(first_draws(1234567)[1] == 173ns);
  static_assert(first_draws(1234567)[2] == 532ns);
}

TEST_CASE("an engine is advanced by a draw, not copied", "[retry]") {
  std::mt19937_64 engine{7};
  const Duration first = sample(0s, 1h, engine);
  CHECK(sample(0s, 1h, engine) != first);
  std::mt19937_64 same{7};
  same.discard(2);
  CHECK(engine == same);
}

TEST_CASE("both ends of a window are drawn, and nothing outside", "[retry]") {
  constexpr std::uint64_t seed = 5;
  CAPTURE(seed);
  std::mt19937_64 engine{seed};
  std::array<int, 3> seen{};
  for (int i = 0; i < 30'000; ++i) {
    const Duration drawn = sample(7ns, 9ns, engine);
    REQUIRE(drawn >= 7ns);
    REQUIRE(drawn <= 9ns);
    ++seen[static_cast<std::size_t>(drawn.count() - 7)];
  }
  for (const int count : seen) CHECK(std::abs(count - 10'000) < 400);  // 5 sd
}

TEST_CASE("a wide window is drawn without bias", "[retry]") {
  // Three quarters of the range: the modulo of 64 bits would draw its lower third twice as often.
  constexpr std::uint64_t seed = 11;
  CAPTURE(seed);
  std::mt19937_64 engine{seed};
  const Duration lo = Duration::min();
  const Duration hi{Duration::max().count() / 2};
  const Duration third{lo.count() + (std::int64_t{1} << 62)};
  int low = 0;
  for (int i = 0; i < 30'000; ++i) low += sample(lo, hi, engine) < third ? 1 : 0;
  CHECK(std::abs(low - 10'000) < 410);
}

TEST_CASE("an engine that is stuck draws an end of the window and does not hang", "[retry]") {
  for (const Duration hi :
       {Duration{1ns}, Duration{2ns}, Duration{5s}, Duration::max() - 1ns, Duration::max()}) {
    std::function<std::uint64_t()> zero = [] { return std::uint64_t{0}; };
    std::function<std::uint64_t()> ones = [] { return ~std::uint64_t{0}; };
    CHECK(sample(0s, hi, zero) == 0s);
    CHECK(sample(0s, hi, ones) == hi);
  }
}

TEST_CASE("a window of one point draws nothing", "[retry]") {
  int calls = 0;
  const auto engine = [&] { return static_cast<std::uint64_t>(++calls); };
  CHECK(sample(3s, 3s, engine) == 3s);
  CHECK(sample(3s, 1s, engine) == 3s);
  CHECK(calls == 0);
}
