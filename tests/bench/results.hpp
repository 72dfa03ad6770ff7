// SPDX-License-Identifier: MIT
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace idem::bench {

/// Lines of results.csv: what was measured, with how many workers, which round-trip time added, in which round.
class Results {
 public:
  /// Throws: std::runtime_error — the file cannot be written.
  Results(const std::string& path, std::string_view benchmark) : benchmark_{benchmark}, csv_{path} {
    if (!csv_) throw std::runtime_error{"cannot write " + path};
  }

  void add(std::string_view what, int workers, int added_ms, int round, double value, std::string_view unit) {
    csv_ << fmt::format("{},{},{},{},{},{:.1f},{}\n", benchmark_, what, workers, added_ms, round, value, unit)
         << std::flush;
  }

 private:
  std::string benchmark_;
  std::ofstream csv_;
};

}  // namespace idem::bench
