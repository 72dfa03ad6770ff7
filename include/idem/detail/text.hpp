// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace idem::detail {

/// One UTF-8 sequence: its code point and its length in bytes; a length of 0 says that the bytes are not
/// UTF-8.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t length = 0;
};

/// Reads the UTF-8 sequence at the start of a text that is not empty (table 3-7 of the Unicode standard:
/// neither overlong forms nor surrogates, nothing above U+10FFFF).
[[nodiscard]] constexpr CodePoint first_code_point(std::string_view text) noexcept {
  const auto at = [text](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return {};
  std::uint32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0U) != 0x80U) return {};
    value = (value << 6U) | (at(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return overlong || surrogate || value > 0x10FFFF ? CodePoint{} : CodePoint{value, length};
}

[[nodiscard]] constexpr bool valid_utf8(std::string_view text) noexcept {
  unsigned all = 0;  // nearly every id is ASCII, which is seen without a branch for each byte
  for (const char c : text) all |= static_cast<unsigned char>(c);
  if (all < 0x80) return true;
  while (!text.empty()) {
    const std::size_t length = first_code_point(text).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// Empty, or ASCII white space only.
[[nodiscard]] constexpr bool blank(std::string_view text) noexcept {
  return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos;
}

/// Characters that would break a log line or turn its reading direction: C0, DEL, C1, the line and paragraph
/// separators, and the bidirectional controls.
[[nodiscard]] constexpr bool needs_escape(std::uint32_t c) noexcept {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/// The text, fit for one line of a log or an error: what `needs_escape` names and bytes that are not UTF-8 as
/// `\xNN`, quotes, backslashes and `separator` behind a backslash. Past `max` bytes it ends in an ellipsis.
[[nodiscard]] inline std::string escaped(std::string_view text, std::size_t max = std::string_view::npos,
                                         char separator = '\\') {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    const std::string_view bytes = text.substr(0, c.length == 0 ? 1 : c.length);
    std::string shown;
    if (bytes == "\n") {
      shown = "\\n";
    } else if (bytes == "\r") {
      shown = "\\r";
    } else if (bytes == "\t") {
      shown = "\\t";
    } else if (c.length == 0 || needs_escape(c.value)) {
      for (const char byte : bytes) {
        const auto value = static_cast<unsigned char>(byte);
        shown += {'\\', 'x', hex[value >> 4U], hex[value & 0xFU]};
      }
    } else {
      if (bytes == "\"" || bytes == "\\" || bytes.front() == separator) shown = "\\";
      shown += bytes;
    }
    if (shown.size() > max - out.size()) return out + "\u2026";
    out += shown;
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace idem::detail
