// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace webhook_ledger {

inline constexpr std::string_view usage =
    "usage: webhook_ledger [deliveries.jsonl] [--workers N] [--threads N] [--seed S]\n"
    "                      [--faults | --no-faults] [--naive | --no-naive]\n"
    "  --workers N   worker processes (1 to 32, default 3)\n"
    "  --threads N   threads in each (1 to 32, default 3)\n"
    "  --seed S      of what is random (default: a new one)\n"
    "  --no-faults   only duplicates: nothing is cut, terminated or killed\n"
    "  --naive       then run two naive consumers under the same load (default with faults)\n"
    "The server is the one that PGHOST, PGUSER and PGDATABASE name.\n";

/// Somebody has to look at the command line, or at the input.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Faulty { yes, no };
enum class Naive { as_faulty, yes, no };

struct Options {
  std::string input = {};  ///< empty: the bundled one
  std::size_t workers = 3;
  std::size_t threads = 3;
  std::uint64_t seed = std::random_device{}();
  Faulty faults = Faulty::yes;
  Naive naive = Naive::as_faulty;
  bool help = false;
  std::string worker_for = {};  ///< in a worker: which consumer it is to run, …
  std::string dsn = {};         ///< … and on what connections

  [[nodiscard]] bool runs_naive() const {
    return naive == Naive::yes || (naive == Naive::as_faulty && faults == Faulty::yes);
  }
};

template <class Number>
[[nodiscard]] Number number_in(std::string_view option, std::string_view text, Number low, Number high) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < low || number > high)
    throw UsageError{fmt::format("{} takes a number from {} to {}, not \"{}\"", option, low, high, text)};
  return number;
}

/// Throws: UsageError.
[[nodiscard]] inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&]() -> std::string_view {
      if (i + 1 == argc) throw UsageError{fmt::format("{} needs a value", word)};
      return argv[++i];
    };
    if (word == "--workers")
      options.workers = number_in<std::size_t>(word, value(), 1, 32);
    else if (word == "--threads")
      options.threads = number_in<std::size_t>(word, value(), 1, 32);
    else if (word == "--seed")
      options.seed = number_in<std::uint64_t>(word, value(), 0, UINT64_MAX);
    else if (word == "--faults")
      options.faults = Faulty::yes;
    else if (word == "--no-faults")
      options.faults = Faulty::no;
    else if (word == "--naive")
      options.naive = Naive::yes;
    else if (word == "--no-naive")
      options.naive = Naive::no;
    else if (word == "--help" || word == "-h")
      options.help = true;
    else if (word == "--worker-for")
      options.worker_for = value();
    else if (word == "--dsn")
      options.dsn = value();
    else if (word.substr(0, 1) == "-" || !options.input.empty())
      throw UsageError{fmt::format("\"{}\" is not understood\n{}", word, usage)};
    else
      options.input = word;
  }
  return options;
}

}  // namespace webhook_ledger
