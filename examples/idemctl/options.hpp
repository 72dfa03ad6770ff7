// SPDX-License-Identifier: MIT
#pragma once

// What was asked for on the command line.

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <idem/idem.hpp>

namespace idemctl {

/// The command line cannot be carried out as it is.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

class Options {
 public:
  Options(int argc, const char* const* argv) {
    constexpr std::array flags{"--json",       "--dry-run", "--payload", "--roles",
                               "--prometheus", "--help",    "--all"};
    constexpr std::array values{"--dsn",   "--schema", "--tenant", "--consumer", "--event",
                                "--code",  "--topic",  "--state",  "--key",      "--older-than",
                                "--limit", "--batch",  "--reason"};
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word.substr(0, 2) != "--") {
        words_.emplace_back(word);
      } else if (std::find(flags.begin(), flags.end(), word) != flags.end()) {
        given_[std::string{word}];
      } else if (std::find(values.begin(), values.end(), word) != values.end()) {
        if (i + 1 == argc) throw UsageError{std::string{word} + " needs a value"};
        given_[std::string{word}] = argv[++i];
      } else {
        throw UsageError{"unknown option " + idem::detail::escaped(word, 80)};
      }
    }
  }

  [[nodiscard]] const std::vector<std::string>& words() const noexcept { return words_; }
  [[nodiscard]] bool has(const std::string& name) const { return given_.count(name) > 0; }
  [[nodiscard]] std::optional<std::string> value(const std::string& name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? std::nullopt : std::optional<std::string>{found->second};
  }
  [[nodiscard]] std::string demand(const std::string& name) const {
    if (auto found = value(name)) return *found;
    throw UsageError{name + " is missing"};
  }

  [[nodiscard]] std::size_t limit() const {
    return has("--limit") ? static_cast<std::size_t>(number(demand("--limit"))) : 100;
  }
  /// Of a single event: --tenant, which may be left out, --consumer and --event.
  [[nodiscard]] idem::Key key() const {
    return idem::Key{value("--tenant").value_or(""), demand("--consumer"), demand("--event")};
  }

  [[nodiscard]] static std::int64_t number(const std::string& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number <= 0)
      throw UsageError{"not a number above 0: " + idem::detail::escaped(text, 40)};
    return number;
  }
  /// 90s, 15m, 36h, 30d
  [[nodiscard]] static idem::Duration duration(const std::string& text) {
    const std::map<char, std::chrono::seconds> units{{'s', std::chrono::seconds{1}},
                                                     {'m', std::chrono::minutes{1}},
                                                     {'h', std::chrono::hours{1}},
                                                     {'d', std::chrono::hours{24}}};
    const auto unit = text.empty() ? units.end() : units.find(text.back());
    if (unit == units.end())
      throw UsageError{"not a duration such as 90s, 15m, 36h or 30d: " + idem::detail::escaped(text, 40)};
    const auto count = number(text.substr(0, text.size() - 1));
    if (count > 36'500 * (86'400 / unit->second.count()))
      throw UsageError{"a duration is at most a hundred years"};
    return count * unit->second;
  }

 private:
  std::vector<std::string> words_ = {};
  std::map<std::string, std::string> given_ = {};
};

}  // namespace idemctl
