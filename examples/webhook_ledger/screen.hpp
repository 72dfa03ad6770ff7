// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/core.h>
#include <unistd.h>

#include "broker.hpp"

namespace webhook_ledger {

/// How far a run is: on a terminal one line that moves, elsewhere a line for each quarter.
class Progress {
 public:
  explicit Progress(std::string_view what) : what_{what} {}

  void show(const BrokerCounts& counts) {
    const auto now = std::chrono::steady_clock::now();
    const std::size_t quarter = counts.messages == 0 ? 4 : counts.settled * 4 / counts.messages;
    const bool last = counts.settled == counts.messages;
    if (terminal_ ? !last && now < next_ : quarter == shown_) return;
    shown_ = quarter;
    next_ = now + std::chrono::milliseconds{100};
    fmt::print("{}  {:<15} {:>5} of {} messages settled, {} handed out, {} workers killed{}",
               terminal_ ? "\r" : "", what_, counts.settled, counts.messages, counts.handed_out,
               counts.workers_killed, terminal_ && !last ? "" : "\n");
    std::fflush(stdout);
  }

 private:
  std::string what_;
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  std::size_t shown_ = 0;
  std::chrono::steady_clock::time_point next_{};
};

inline void print_row(std::string_view what, std::size_t number, std::string_view remark) {
  fmt::print("  {:<28}{:>7}   {}\n", what, number, remark);
}

}  // namespace webhook_ledger
