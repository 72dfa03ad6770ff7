// SPDX-License-Identifier: MIT
#pragma once

// Rows for people and for scripts.

#include <chrono>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include <idem/idem.hpp>
#include <nlohmann/json.hpp>

namespace idemctl {

using Json = nlohmann::ordered_json;

enum class Format { table, json };

[[nodiscard]] inline std::string text_of(const Json& value) {
  if (value.is_null()) return "-";
  return idem::detail::escaped(value.is_string() ? value.get<std::string>() : value.dump(), 200);
}

/// Prints rows, all of the same columns: as a table, or as one JSON array.
inline void print(const std::vector<Json>& rows, Format format) {
  if (format == Format::json) {
    std::cout << Json(rows).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  if (rows.empty()) {
    std::cout << "(none)\n";
    return;
  }
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines[0].push_back(name);
  for (const Json& row : rows) {
    lines.emplace_back();
    for (const auto& value : row) lines.back().push_back(text_of(value));
  }
  std::vector<std::size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      std::cout << line[i] << std::string(i + 1 < line.size() ? widths[i] - line[i].size() + 2 : 0, ' ');
    std::cout << '\n';
  }
}

/// Prints one thing, a line for each of its properties, or as one JSON object.
inline void print_one(const Json& one, Format format) {
  if (format == Format::json) {
    std::cout << one.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
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
