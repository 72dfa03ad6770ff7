// SPDX-License-Identifier: MIT
#pragma once

// What every command works with.

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "options.hpp"
#include "output.hpp"

namespace idemctl {

/// How the program ends; `idemctl --help` tells them.
enum Exit { done = 0, nothing = 1, wrong_use = 2, misconfigured = 3, try_again = 4, refused = 5 };

/// More rows than this are not listed, and not counted, at once.
inline constexpr std::size_t most = 1'000'000;

struct Desk {
  explicit Desk(const Options& given)
      : options{given},
        schema{given.value("--schema").value_or("idem")},
        format{given.has("--json") ? Format::json : Format::table},
        store{given.value("--dsn").value_or(""), {.schema = schema, .max_connections = 1}},
        upkeep{store} {}

  [[nodiscard]] bool dry_run() const { return options.has("--dry-run"); }

  [[nodiscard]] std::uint64_t count(const std::string& sql) {
    const pqxx::result rows = upkeep.ask(sql);
    return rows[0][0].as<std::uint64_t>();
  }

  /// Prints how many rows were changed, or would be.
  void print_changed(const std::string& what, std::uint64_t count) const {
    print_one({{dry_run() ? "would_be_" + what : what, count}}, format);
  }

  const Options& options;
  std::string schema;
  Format format;
  idem::PostgresStore store;
  idem::postgres::detail::Upkeep upkeep;  // for the questions that the library has no call for
};

[[nodiscard]] inline Exit say(Exit how, std::string_view text) {
  std::cerr << "idemctl: " << text << '\n';
  return how;
}

}  // namespace idemctl
