// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/fingerprint.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// Appends `text` as a literal that means the same whatever standard_conforming_strings says.
inline void append_literal(std::string& sql, std::string_view text) {
  const bool has_backslash = text.find('\\') != std::string_view::npos;
  if (has_backslash) sql += 'E';
  sql += '\'';
  for (const char c : text) {
    if (c == '\'' || c == '\\') sql += c;
    sql += c;
  }
  sql += '\'';
}

[[nodiscard]] inline std::string literal(std::string_view text) {
  std::string sql;
  append_literal(sql, text);
  return sql;
}

/// An identifier, quoted.
[[nodiscard]] inline std::string identifier(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name) {
    if (c == '"') quoted += c;
    quoted += c;
  }
  return quoted += '"';
}

inline void append_hex(std::string& text, std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  for (const std::byte byte : bytes) {
    text += digits[std::to_integer<std::size_t>(byte >> 4)];
    text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
}

/// Appends a bytea value, which means the same whatever standard_conforming_strings says; a constant, where a
/// call of decode() costs the server some microseconds each time.
inline void append_bytea(std::string& sql, std::span<const std::byte> bytes) {
  sql += "E'\\\\x";
  append_hex(sql, bytes);
  sql += "'::bytea";
}

[[nodiscard]] inline std::string bytea_or_null(const Fingerprint& fingerprint) {
  std::string sql = "NULL";
  if (fingerprint.given()) {
    sql.clear();
    append_bytea(sql, fingerprint.to_bytes());
  }
  return sql;
}

[[nodiscard]] inline std::string interval(Duration span) {
  return fmt::format("'{} microseconds'::interval",
                     std::chrono::ceil<std::chrono::microseconds>(span).count());
}

[[nodiscard]] inline std::string interval_or_null(const std::optional<Duration>& span) {
  return span ? interval(*span) : "NULL::interval";
}

/// A moment, held within the years 1 to 9999 that every server accepts.
[[nodiscard]] inline std::string timestamp(std::chrono::system_clock::time_point moment) {
  using std::chrono::seconds;
  const auto since_1970 = std::chrono::floor<std::chrono::microseconds>(moment.time_since_epoch());
  const auto held =
      std::clamp<std::chrono::microseconds>(since_1970, seconds{-62135596800}, seconds{253402300799});
  return fmt::format("('epoch'::timestamptz + '{} microseconds'::interval)", held.count());
}

/// `text` as a value that means the same whatever client_encoding says (a handler may have changed it), and
/// whatever search_path says: a function of that name that takes text would fit better than the server's own.
[[nodiscard]] inline std::string text_value(std::string_view text) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return literal(text);
  std::string sql = "pg_catalog.convert_from(";
  append_bytea(sql, std::as_bytes(std::span{text.data(), text.size()}));
  return sql += ",'UTF8')";
}

/// A row that no longer holds its key: its window has ended, or its lease without an effect.
inline constexpr std::string_view is_free =
    "(COALESCE(window_ends <= clock_timestamp(), false) OR "
    "(committed_at IS NULL AND COALESCE(leased_until <= clock_timestamp(), false)))";

/// Reads hexadecimal digits; `\x` in front, as the server prints bytea, and hyphens, as in a uuid, are passed
/// over.
[[nodiscard]] inline std::string bytes_of_hex(std::string_view hex) {
  if (hex.substr(0, 2) == "\\x") hex.remove_prefix(2);
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw std::invalid_argument{"the server's answer is no hexadecimal text"};
  };
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  int high = -1;
  for (const char c : hex) {
    if (c == '-') continue;
    if (high < 0) {
      high = digit(c);
    } else {
      bytes += static_cast<char>(high * 16 + digit(c));
      high = -1;
    }
  }
  return bytes;
}

/// A token as the server reads and prints a uuid (without hyphens, which it does not need).
[[nodiscard]] inline std::string hex_of(const ClaimToken& token) {
  std::string hex;
  hex.reserve(2 * token.bytes.size());
  append_hex(hex, token.bytes);
  return hex;
}

[[nodiscard]] inline ClaimToken token_of(std::string_view uuid) {
  const std::string bytes = bytes_of_hex(uuid);
  ClaimToken token;
  for (std::size_t i = 0; i < bytes.size() && i < token.bytes.size(); ++i)
    token.bytes[i] = static_cast<std::byte>(bytes[i]);
  return token;
}

}  // namespace idem::postgres::detail
