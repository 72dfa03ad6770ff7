// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <idem/duration.hpp>

namespace idem::detail {

/// A span in the largest unit that shows it exactly: `90s`, `1500ms`.
[[nodiscard]] inline std::string text_of(Duration d) {
  constexpr std::array<std::pair<std::int64_t, std::string_view>, 4> units{
      {{3'600'000'000'000, "h"}, {1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}}};
  for (const auto& [length, name] : units) {
    if (d.count() != 0 && d.count() % length == 0)
      return std::to_string(d.count() / length) + std::string{name};
  }
  return std::to_string(d.count()) + "ns";
}

// Not constexpr on purpose: reaching one of these while a constant is computed is the compile error, and the
// compiler shows the line with the rule in it.

[[noreturn]] inline void refuse(std::string_view rule, Duration given) {
  throw std::invalid_argument{std::string{rule} + " (given: " + text_of(given) + ")"};
}

template <std::integral Number>
[[noreturn]] void refuse(std::string_view rule, Number given) {
  throw std::invalid_argument{std::string{rule} + " (given: " + std::to_string(given) + ")"};
}

}  // namespace idem::detail
