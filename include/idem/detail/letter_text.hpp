// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <idem/detail/text.hpp>
#include <idem/outcome.hpp>

namespace idem::detail {

/// As much of a text as a dead letter keeps of it, in bytes.
inline constexpr std::size_t longest_letter_text = 1'000;

/// The text as every database stores it: NUL and bytes that are not UTF-8 become U+FFFD, and past the limit it
/// is cut between two characters and ends in an ellipsis.
[[nodiscard]] inline std::string storable(std::string_view text, std::size_t most = longest_letter_text) {
  constexpr std::string_view ellipsis = "\u2026";
  constexpr std::string_view replacement = "\uFFFD";
  std::string out;
  std::size_t whole = 0;  // as much of it leaves room for the ellipsis
  while (!text.empty()) {
    const std::size_t length = text.front() == '\0' ? 0 : first_code_point(text).length;
    const std::string_view next = length == 0 ? replacement : text.substr(0, length);
    if (out.size() + next.size() > most) return out.substr(0, whole).append(ellipsis);
    out += next;
    if (out.size() + ellipsis.size() <= most) whole = out.size();
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

/// The failure with its texts storable.
[[nodiscard]] inline Failure storable(const Failure& failure) {
  return {failure.kind, storable(failure.code, 100), storable(failure.message)};
}

}  // namespace idem::detail
