// SPDX-License-Identifier: MIT
#pragma once

// What was asked for on the command line.

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
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

struct Option {
  std::string_view name;
  std::string_view value;  ///< what its value is called; empty: it takes none
  std::string_view text;
};

inline constexpr std::array all_options{
    Option{"--dsn", "TEXT",
           "as libpq reads it; what it leaves out comes from PGHOST, PGUSER, PGDATABASE, ..."},
    Option{"--schema", "NAME", "where the tables are (idem)"},
    Option{"--json", "", "one JSON document in place of a table"},
    Option{"--dry-run", "", "say what would be changed, and change nothing"},
    Option{"--tenant", "TEXT", "of this tenant; of an event: left out, the empty one"},
    Option{"--consumer", "NAME", "of this consumer"},
    Option{"--event", "ID", "of the event with this id"},
    Option{"--kind", "KIND", "that died of this kind last: permanent, transient, ..."},
    Option{"--code", "CODE", "that died of this code last: an SQLSTATE, or one of idem's"},
    Option{"--topic", "TEXT", "of this topic"},
    Option{"--key", "TEXT", "of this ordering key"},
    Option{"--id", "ID", "the message with this id"},
    Option{"--state", "STATE",
           "letters: open (as if left out), closed, any; messages: waiting, parked, sending, dead"},
    Option{"--all", "", "in place of a filter: every open letter, or every dead message"},
    Option{"--reason", "TEXT", "why, for whoever reads it later"},
    Option{"--payload", "", "print what the message said, too"},
    Option{"--limit", "N", "the most rows of a list (100)"},
    Option{"--older-than", "AGE", "90s, 15m, 36h, 30d"},
    Option{"--batch", "N", "rows that one transaction removes (1000)"},
    Option{"--roles", "", "the SQL of the roles in place of the tables'"},
    Option{"--prometheus", "", "in Prometheus' text format"},
    Option{"--help", "", "this text; after a command, that command's"}};

class Options {
 public:
  Options(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word.substr(0, 2) != "--") {
        words_.emplace_back(word);
        continue;
      }
      const auto equals = word.find('=');
      const std::string name{word.substr(0, equals)};
      const auto option = std::find_if(all_options.begin(), all_options.end(),
                                       [&](const Option& one) { return one.name == name; });
      if (option == all_options.end()) throw UsageError{"unknown option " + idem::detail::escaped(name, 80)};
      if (has(name)) throw UsageError{name + " is given twice"};
      if (equals != std::string_view::npos) {
        if (option->value.empty()) throw UsageError{name + " takes no value"};
        given_[name] = word.substr(equals + 1);
      } else if (option->value.empty()) {
        given_[name];
      } else {
        // A value that was forgotten must not eat the --dry-run behind it.
        if (i + 1 == argc || std::string_view{argv[i + 1]}.substr(0, 2) == "--")
          throw UsageError{name + " needs a value (one that begins with --: " + name + "=VALUE)"};
        given_[name] = argv[++i];
      }
    }
  }

  [[nodiscard]] const std::vector<std::string>& words() const noexcept { return words_; }
  /// The options that are given, by name.
  [[nodiscard]] const std::map<std::string, std::string>& given() const noexcept { return given_; }

  [[nodiscard]] bool has(const std::string& name) const { return given_.count(name) > 0; }
  [[nodiscard]] std::optional<std::string> value(const std::string& name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? std::nullopt : std::optional<std::string>{found->second};
  }
  [[nodiscard]] std::string demand(const std::string& name) const {
    if (auto found = value(name)) return *found;
    throw UsageError{name + " is missing"};
  }
  /// Not blank.
  [[nodiscard]] std::string reason() const {
    auto text = demand("--reason");
    if (idem::detail::blank(text)) throw UsageError{"--reason is blank; say why, for whoever reads it later"};
    return text;
  }
  [[nodiscard]] std::size_t limit() const {
    return has("--limit") ? static_cast<std::size_t>(number(demand("--limit"))) : 100;
  }
  /// Of a single event: --tenant, which may be left out, --consumer and --event.
  [[nodiscard]] idem::Key event() const {
    return idem::Key{value("--tenant").value_or(""), demand("--consumer"), demand("--event")};
  }
  /// Of letters or messages: ids, a filter or --all, and one of them only.
  void demand_one_way(std::string_view what, std::initializer_list<bool> ways,
                      std::string_view choice) const {
    if (std::count(ways.begin(), ways.end(), true) != 1)
      throw UsageError{std::string{what} + " needs " + std::string{choice} + ": one of them, and one only"};
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
  /// The one of `choices` whose spelling --NAME gives.
  template <class Choice, class Spelling>
  [[nodiscard]] std::optional<Choice> one_of(const std::string& name, std::initializer_list<Choice> choices,
                                             Spelling spelling) const {
    const auto text = value(name);
    if (!text) return std::nullopt;
    std::string known;
    for (const Choice choice : choices) {
      const std::string spelled{spelling(choice)};
      if (spelled == *text) return choice;
      known += (known.empty() ? "" : ", ") + spelled;
    }
    throw UsageError{name + " is one of " + known};
  }

 private:
  std::vector<std::string> words_ = {};
  std::map<std::string, std::string> given_ = {};
};

}  // namespace idemctl
