// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>

#include <idem/duration.hpp>

namespace idem {

/// A random engine of 8 bytes, the same sequence for a seed on every compiler, usable in constants.
///
/// SplitMix64 (Steele, Lea, Flood 2014): good enough to spread delays, not for secrets.
class SplitMix64 {
 public:
  using result_type = std::uint64_t;

  constexpr explicit SplitMix64(std::uint64_t seed) noexcept : state_{seed} {}

  [[nodiscard]] static constexpr std::uint64_t(min)() noexcept { return 0; }
  [[nodiscard]] static constexpr std::uint64_t(max)() noexcept {
    return (std::numeric_limits<std::uint64_t>::max)();
  }

  constexpr std::uint64_t operator()() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

namespace detail {

struct Product {
  std::uint64_t high;
  std::uint64_t low;
};

/// The 128 bits of a × b; ISO C++ has no type for them.
[[nodiscard]] constexpr Product multiply(std::uint64_t a, std::uint64_t b) noexcept {
  constexpr std::uint64_t low_half = 0xffffffffU;
  const std::uint64_t low = (a & low_half) * (b & low_half);
  const std::uint64_t cross = (a >> 32) * (b & low_half) + (low >> 32);
  const std::uint64_t middle = (a & low_half) * (b >> 32) + (cross & low_half);
  return {(a >> 32) * (b >> 32) + (cross >> 32) + (middle >> 32), a * b};
}

}  // namespace detail

/// Draws one delay from `[lo, hi]`, uniformly, both ends included.
///
/// `engine()` gives 64 random bits. Its own mapping (Lemire 2019), because `std::uniform_int_distribution`
/// differs from one standard library to another. An engine that gives 0 draws `lo`, one that gives only ones
/// draws `hi`.
template <class Engine>
  requires std::convertible_to<std::invoke_result_t<Engine&>, std::uint64_t>
[[nodiscard]] constexpr Duration sample(Duration lo, Duration hi, Engine& engine) {
  if (hi <= lo) return lo;
  const std::uint64_t width =
      static_cast<std::uint64_t>(hi.count()) - static_cast<std::uint64_t>(lo.count()) + 1;
  if (width == 0) return Duration{static_cast<std::int64_t>(engine())};  // the whole range of 64 bits
  const std::uint64_t uneven = (0 - width) % width;
  detail::Product drawn = detail::multiply(engine(), width);
  // A fair engine is refused with less than an even chance each time; a fixed one, as tests use, must not
  // hang.
  for (int refused = 0; drawn.low < uneven && refused < 64; ++refused)
    drawn = detail::multiply(engine(), width);
  return Duration{static_cast<std::int64_t>(static_cast<std::uint64_t>(lo.count()) + drawn.high)};
}

}  // namespace idem
