// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include <idem/duration.hpp>

namespace idem::detail {

/// Writes metrics in Prometheus' text format, version 0.0.4.
class PrometheusText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  /// Begins a family: all its samples follow. `type`: counter, gauge or histogram.
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, ""), name, type);
  }

  /// One sample of the family. `suffix`: a histogram's `_bucket`, `_sum` or `_count`.
  template <class Value>
  void sample(Labels labels, Value value, std::string_view suffix = "") {
    text_ += name_;
    text_ += suffix;
    char before = '{';
    for (const auto& [name, its_value] : labels) {
      text_ += fmt::format("{}{}=\"{}\"", before, name, escaped(its_value, "\""));
      before = ',';
    }
    if (before == ',') text_ += '}';
    text_ += ' ' + number(value) + '\n';
  }

  /// A family of one sample without labels.
  template <class Value>
  void single(std::string_view name, std::string_view type, std::string_view help, Value value) {
    family(name, type, help);
    sample({}, value);
  }

  /// A duration is in seconds, as Prometheus wants them.
  [[nodiscard]] static std::string number(Duration span) {
    return fmt::format("{}", static_cast<double>(span.count()) / 1e9);
  }
  [[nodiscard]] static std::string number(std::integral auto value) { return fmt::format("{}", value); }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  [[nodiscard]] static std::string escaped(std::string_view text, std::string_view quote) {
    std::string out;
    for (const char c : text) {
      if (c == '\n') {
        out += "\\n";
        continue;
      }
      if (c == '\\' || quote.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
    return out;
  }

  std::string text_;
  std::string_view name_;
};

}  // namespace idem::detail
