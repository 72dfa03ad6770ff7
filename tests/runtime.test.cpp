// SPDX-License-Identifier: MIT
#include <idem/runtime.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

using Time = std::chrono::steady_clock::time_point;
static_assert(std::is_aggregate_v<Runtime>);

}  // namespace

TEST_CASE("each member of a runtime is replaced on its own", "[runtime]") {
  const Runtime fixed{.clock = [] { return Time{5s}; }};
  CHECK(fixed.clock() == Time{5s});
  const Runtime seeded{.engine = std::mt19937_64{7}};
  CHECK(seeded.engine() == std::mt19937_64{7}());
  Time slept{};
  const Runtime all{.clock = [] { return Time{5s}; },
                    .sleeper = [&](Time until, const std::stop_token&) { slept = until; },
                    .engine = [] { return std::uint64_t{3}; }};
  all.sleeper(Time{9s}, {});
  CHECK(slept == Time{9s});
  CHECK(all.engine() == 3);
}

TEST_CASE("the clock of a runtime left as it is does not go backwards", "[runtime]") {
  const Runtime runtime;
  const Time before = std::chrono::steady_clock::now();
  CHECK(runtime.clock() >= before);
}

TEST_CASE("engines left as they are have different seeds", "[runtime]") {
  const Runtime one;
  const Runtime other;
  CHECK(one.engine() != other.engine());  // by chance equal once in 2^64
}

TEST_CASE("an empty member of a runtime means the real thing, a given one is kept", "[runtime]") {
  const Runtime runtime = detail::with_defaults(
      {.clock = nullptr, .sleeper = nullptr, .engine = [] { return std::uint64_t{3}; }});
  CHECK(runtime.clock() > Time{});
  runtime.sleeper(Time::min(), {});
  CHECK(runtime.engine() == 3);
  CHECK(detail::with_defaults({.engine = nullptr}).engine);
}

TEST_CASE("a moment in the past, or a stop already asked for, is not waited for", "[runtime]") {
  const Runtime runtime;
  runtime.sleeper(Time{}, {});
  runtime.sleeper(Time::min(), {});
  std::stop_source stop;
  stop.request_stop();
  runtime.sleeper(Time::max(), stop.get_token());
  SUCCEED("every sleep has ended");
}

TEST_CASE("a stop wakes the longest sleep", "[runtime]") {
  std::stop_source stop;
  std::thread sleeper{[&] { Runtime{}.sleeper(Time::max(), stop.get_token()); }};
  stop.request_stop();
  sleeper.join();
  SUCCEED("the sleep has ended");
}

TEST_CASE("a sleep ends at its moment and not before", "[runtime]") {
  const Time until = std::chrono::steady_clock::now() + 2ms;
  Runtime{}.sleeper(until, {});
  CHECK(std::chrono::steady_clock::now() >= until);
}

// llvm/llvm-project#59260: waits until the last moment there is returned at once.
TEST_CASE("the longest sleep is cut into waits that a system can express, until a stop", "[runtime]") {
  Time now{1'000s};
  std::stop_source stop;
  int waits = 0;
  detail::sleep_in_slices(
      Time::max(), stop.get_token(), [&] { return now; },
      [&](Time until) {
        REQUIRE(until > now);
        REQUIRE(until - now <= 1h);
        now = until;
        if (++waits == 10'000) stop.request_stop();
      });
  CHECK(waits == 10'000);
}

TEST_CASE("a wait that returns early is taken up again", "[runtime]") {
  Time now{1'000s};
  int waits = 0;
  detail::sleep_in_slices(
      Time{1'003s}, {}, [&] { return now; },
      [&](Time until) {
        CHECK(until == Time{1'003s});
        now += 1s;
        ++waits;
      });
  CHECK(waits == 3);
}

TEST_CASE("near the end of time a slice does not wrap into the past", "[runtime]") {
  Time now = Time::max() - 1s;
  int waits = 0;
  detail::sleep_in_slices(
      Time::max(), {}, [&] { return now; },
      [&](Time until) {
        CHECK(until == Time::max());
        now = until;
        ++waits;
      });
  CHECK(waits == 1);
}
