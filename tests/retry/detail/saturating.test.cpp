// SPDX-License-Identifier: MIT
#include <idem/retry/detail/saturating.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <ratio>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using idem::Duration;
namespace detail = idem::detail;

TEST_CASE("any chrono duration converts, and what does not fit saturates", "[retry]") {
  CHECK(detail::saturating_cast(500ms) == 500'000'000ns);
  CHECK(detail::saturating_cast(-90min) == -5'400'000'000'000ns);
  CHECK(detail::saturating_cast(std::chrono::duration<double>{0.25}) == 250ms);
  CHECK(detail::saturating_cast(std::chrono::duration<int, std::ratio<1, 60>>{90}) == 1500ms);
  CHECK(detail::saturating_cast(std::chrono::duration<std::int64_t, std::pico>{-2'999}) == -2ns);
  CHECK(detail::saturating_cast(std::chrono::hours::max()) == Duration::max());
  CHECK(detail::saturating_cast(std::chrono::hours::min()) == Duration::min());
  CHECK(detail::saturating_cast(std::chrono::seconds{9'223'372'036}) == 9'223'372'036s);
  CHECK(detail::saturating_cast(std::chrono::seconds{9'223'372'037}) == Duration::max());
  CHECK(detail::saturating_cast(std::chrono::duration<std::uint64_t>{~0ULL}) == Duration::max());
  CHECK(detail::saturating_cast(std::chrono::duration<double>{1e300}) == Duration::max());
  CHECK(detail::saturating_cast(std::chrono::duration<double>{-1e300}) == Duration::min());
}

TEST_CASE("not a number converts to what every stage refuses", "[retry]") {
  CHECK(detail::saturating_cast(std::chrono::duration<double>{std::numeric_limits<double>::quiet_NaN()}) <
        Duration::zero());
}

TEST_CASE("sums, differences and products of durations stop at the ends", "[retry]") {
  CHECK(detail::saturating_add(1s, 2s) == 3s);
  CHECK(detail::saturating_add(Duration::max(), 1ns) == Duration::max());
  CHECK(detail::saturating_add(Duration::min(), -1ns) == Duration::min());
  CHECK(detail::saturating_subtract(1s, 3s) == -2s);
  CHECK(detail::saturating_subtract(Duration::min(), 1ns) == Duration::min());
  CHECK(detail::saturating_subtract(Duration::max(), -1ns) == Duration::max());
  CHECK(detail::saturating_multiply(2s, 3) == 6s);
  CHECK(detail::saturating_multiply(0s, ~0ULL) == 0s);
  CHECK(detail::saturating_multiply(1ns, ~0ULL) == Duration::max());
  CHECK(detail::saturating_multiply(Duration::max(), 1) == Duration::max());
  CHECK(detail::saturating_multiply(Duration::max() / 2 + 1ns, 2) == Duration::max());
  CHECK(detail::percent_of(Duration::max(), 100) == Duration::max());
  CHECK(detail::percent_of(10s, 25) == 2500ms);
}

TEST_CASE("the furthest moment is in the future, however far the wait", "[retry]") {
  using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;
  constexpr Time now{1'000'000s};
  CHECK(detail::saturating_add(now, 5s) == now + 5s);
  CHECK(detail::saturating_add(now, Duration::max()) == Time::max());
}
