// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <idem/duration.hpp>

/// Arithmetic on time spans that stops at the ends of the range: a delay that wraps is negative, and a
/// negative delay is a tight loop.
namespace idem::detail {

[[nodiscard]] constexpr Duration saturating_add(Duration a, Duration b) noexcept {
  if (b > Duration::zero() && a > (Duration::max)() - b) return (Duration::max)();
  if (b < Duration::zero() && a < (Duration::min)() - b) return (Duration::min)();
  return a + b;
}

[[nodiscard]] constexpr Duration saturating_subtract(Duration a, Duration b) noexcept {
  if (b < Duration::zero() && a > (Duration::max)() + b) return (Duration::max)();
  if (b > Duration::zero() && a < (Duration::min)() + b) return (Duration::min)();
  return a - b;
}

/// For `d >= 0`.
[[nodiscard]] constexpr Duration saturating_multiply(Duration d, std::uint64_t factor) noexcept {
  if (d == Duration::zero() || factor == 0) return Duration::zero();
  const auto most = static_cast<std::uint64_t>(((Duration::max)() / d.count()).count());
  return factor > most ? (Duration::max)() : d * static_cast<std::int64_t>(factor);
}

/// `percent` of `d`, for `d >= 0` and `0 <= percent <= 100`: cannot overflow.
[[nodiscard]] constexpr Duration percent_of(Duration d, int percent) noexcept {
  return d / 100 * percent + d % 100 * percent / 100;
}

/// `now + d`; plain `+` wraps into the past for the longest waits.
template <class Clock>
[[nodiscard]] constexpr std::chrono::time_point<Clock, Duration> saturating_add(
    std::chrono::time_point<Clock, Duration> now, Duration d) noexcept {
  return std::chrono::time_point<Clock, Duration>{saturating_add(now.time_since_epoch(), d)};
}

/// `duration_cast<Duration>` that saturates. What is not a number becomes the least value, which every stage
/// refuses.
template <class Rep, class Period>
[[nodiscard]] constexpr Duration saturating_cast(std::chrono::duration<Rep, Period> d) noexcept {
  using Factor = std::ratio_divide<Period, Duration::period>;
  if constexpr (std::is_floating_point_v<Rep>) {
    const long double ns = static_cast<long double>(d.count()) * Factor::num / Factor::den;
    constexpr long double end = 9223372036854775808.0L;
    if (ns >= end) return (Duration::max)();
    return ns > -end ? Duration{static_cast<std::int64_t>(ns)} : (Duration::min)();
  } else {
    constexpr auto most = (std::numeric_limits<std::int64_t>::max)();
    if (std::cmp_greater(d.count(), most)) return (Duration::max)();
    const auto count = static_cast<std::int64_t>(d.count());
    const std::int64_t whole = count / Factor::den;
    if (whole > most / Factor::num) return (Duration::max)();
    if (whole < -(most / Factor::num)) return (Duration::min)();
    return saturating_add(Duration{whole * Factor::num},
                          Duration{count % Factor::den * Factor::num / Factor::den});
  }
}

/// A parameter that takes any `std::chrono` duration, saturated to `Duration`.
class AnyDuration {
 public:
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): being implicit is its purpose
  constexpr AnyDuration(std::chrono::duration<Rep, Period> d) noexcept : value_{saturating_cast(d)} {}

  [[nodiscard]] constexpr Duration value() const noexcept { return value_; }

 private:
  Duration value_;
};

}  // namespace idem::detail
