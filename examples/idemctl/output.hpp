// SPDX-License-Identifier: MIT
#pragma once

// Rows for people and for scripts.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <idem/idem.hpp>
#include <nlohmann/json.hpp>

namespace idemctl {

using Json = nlohmann::ordered_json;

enum class Format { table, json };

/// Of a value: one line, whatever it holds.
[[nodiscard]] inline std::string text_of(const Json& value, std::size_t max = std::string_view::npos) {
  if (value.is_null()) return "-";
  return idem::detail::escaped(value.is_string() ? value.get<std::string>() : value.dump(), max);
}

/// Columns of a terminal, about: code points.
[[nodiscard]] inline std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

inline void print_json(const Json& document) {
  std::cout << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

/// Prints rows, all of the same columns: as a table, which cuts long texts, or as one JSON array.
inline void print(const std::vector<Json>& rows, Format format) {
  if (format == Format::json) return print_json(rows);
  if (rows.empty()) {
    std::cout << "(none)\n";
    return;
  }
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines[0].push_back(name);
  for (const Json& row : rows) {
    lines.emplace_back();
    for (const auto& value : row) lines.back().push_back(text_of(value, 200));
  }
  std::vector<std::size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width_of(line[i]));
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      std::cout << line[i] << std::string(i + 1 < line.size() ? widths[i] - width_of(line[i]) + 2 : 0, ' ');
    std::cout << '\n';
  }
}

/// Prints one thing, a line for each of its properties, or as one JSON object.
inline void print_one(const Json& one, Format format) {
  if (format == Format::json) return print_json(one);
  for (const auto& [name, value] : one.items()) std::cout << name << ": " << text_of(value) << '\n';
}

/// UTC, to the second.
[[nodiscard]] inline std::string time_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}
[[nodiscard]] inline Json time_or_null(const std::optional<std::chrono::system_clock::time_point>& time) {
  return time ? Json(time_text(*time)) : Json();
}
[[nodiscard]] inline double seconds(idem::Duration span) {
  return std::chrono::duration<double>(span).count();
}

}  // namespace idemctl
