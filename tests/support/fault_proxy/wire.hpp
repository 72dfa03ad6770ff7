// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace idem::tests::wire {

// Codes that a packet without a type byte begins with (protocol 3.0, "Message Formats").
inline constexpr std::uint32_t cancel_request = 80877102;
inline constexpr std::uint32_t ssl_request = 80877103;
inline constexpr std::uint32_t gss_request = 80877104;

[[nodiscard]] inline std::uint32_t big_endian(std::string_view four_bytes) noexcept {
  std::uint32_t value = 0;
  for (const char c : four_bytes.substr(0, 4)) value = (value << 8U) | static_cast<unsigned char>(c);
  return value;
}

/// Takes the first whole message off `buffer`: a type byte and a length that counts itself, or, with
/// `header` 4, the length alone. A length below the smallest possible takes everything: the other end
/// complains about it.
[[nodiscard]] inline std::optional<std::string> take(std::string& buffer, std::size_t header) {
  if (buffer.size() < header) return std::nullopt;
  const std::size_t length = big_endian(std::string_view{buffer}.substr(header - 4));
  const std::size_t total = length < 4 ? buffer.size() : header - 4 + length;
  if (buffer.size() < total) return std::nullopt;
  std::string message = buffer.substr(0, total);
  buffer.erase(0, total);
  return message;
}

/// The nth zero-terminated string in a typed message's body, from 0.
[[nodiscard]] inline std::string_view text_in(std::string_view message, std::size_t nth) noexcept {
  message.remove_prefix(message.size() < 5 ? message.size() : 5);
  for (; nth > 0; --nth) {
    const std::size_t end = message.find('\0');
    if (end == std::string_view::npos) return {};
    message.remove_prefix(end + 1);
  }
  return message.substr(0, message.find('\0'));
}

[[nodiscard]] constexpr bool is_word_char(char c) noexcept {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/// Whether `word` stands in `text` with no letter, digit or underscore next to it.
[[nodiscard]] inline bool has_word(std::string_view text, std::string_view word) noexcept {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word_char(text[at - 1])) && (end == text.size() || !is_word_char(text[end])))
      return true;
  }
  return false;
}

/// The first word of a statement: enough for a log, and never a parameter or a literal.
[[nodiscard]] inline std::string_view first_word(std::string_view sql) noexcept {
  while (!sql.empty() && (sql.front() == ' ' || sql.front() == '\n' || sql.front() == '\t'))
    sql.remove_prefix(1);
  std::size_t end = 0;
  while (end < sql.size() && is_word_char(sql[end])) ++end;
  return sql.substr(0, end);
}

}  // namespace idem::tests::wire
