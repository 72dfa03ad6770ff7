// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/fault_proxy/plan.hpp"
#include "support/fault_proxy/wire.hpp"

namespace idem::tests {

/// Decides which exchange meets which fault, and keeps the counts and the log. Knows no sockets; not
/// thread-safe: the proxy calls it under its lock.
class Desk {
 public:
  void arm(Fault fault) { queue_.push_back(std::move(fault)); }

  void arm_plan(const FaultPlan& plan) {
    check(plan);
    plan_ = plan;
    plan_exchanges_ = plan_connections_ = 0;
  }

  void disarm() {
    queue_.clear();
    plan_.reset();
    matched_ = 0;
  }

  /// Called once for each new connection: whether the plan refuses it.
  [[nodiscard]] bool refuses() {
    return plan_ && draw(plan_->seed, Draw::refuse, ++plan_connections_) % 1000 < plan_->refuse;
  }

  /// Called once for each exchange, when the client's last byte of it is there.
  [[nodiscard]] std::optional<Fault> choose(std::size_t connection, std::string_view sql, std::size_t size) {
    std::optional<Fault> fault = planned(size);
    if (!queue_.empty() && (queue_.front().word.empty() || wire::has_word(sql, queue_.front().word)) &&
        ++matched_ >= queue_.front().nth) {
      fault = std::move(queue_.front());
      queue_.pop_front();
      matched_ = 0;
    }
    std::string line{wire::first_word(sql)};
    if (line != "COMMIT" && wire::has_word(sql, "COMMIT")) line += " ... COMMIT";
    if (fault) line.append(" -> ").append(name_of(fault->cut));
    note(connection, line);
    return fault;
  }

  void connected(std::size_t connection) {
    ++connections_;
    note(connection, "connect");
  }
  void refused(std::size_t connection) { note(connection, "refused"); }
  void note_round_trip() noexcept { ++round_trips_; }
  void note_fired() noexcept { ++fired_; }
  void reset_counts() noexcept { round_trips_ = connections_ = fired_ = 0; }

  [[nodiscard]] std::size_t round_trips() const noexcept { return round_trips_; }
  [[nodiscard]] std::size_t connections() const noexcept { return connections_; }
  [[nodiscard]] std::size_t fired() const noexcept { return fired_; }
  [[nodiscard]] std::vector<std::string> log() const { return {log_.begin(), log_.end()}; }

 private:
  [[nodiscard]] std::optional<Fault> planned(std::size_t size) {
    if (!plan_) return std::nullopt;
    const std::uint64_t number = ++plan_exchanges_;
    const std::optional<Cut> cut = drawn_cut(*plan_, number);
    if (!cut) return std::nullopt;
    // How long the answer will be is not known yet: 64 bytes reach into its every part, mostly.
    const std::size_t limit = *cut == Cut::inside_answer ? 64 : size;
    const auto bytes = static_cast<std::size_t>(draw(plan_->seed, Draw::bytes, number) % limit);
    return Fault{.cut = *cut, .bytes = bytes};
  }

  void note(std::size_t connection, std::string_view line) {
    // Bounded, so that a benchmark of millions of exchanges does not grow for ever.
    if (log_.size() == 65536) log_.pop_front();
    log_.push_back(std::to_string(connection).append(": ").append(line));
  }

  std::deque<Fault> queue_;
  std::size_t matched_ = 0;
  std::optional<FaultPlan> plan_;
  std::uint64_t plan_exchanges_ = 0;
  std::uint64_t plan_connections_ = 0;
  std::size_t round_trips_ = 0;
  std::size_t connections_ = 0;
  std::size_t fired_ = 0;
  std::deque<std::string> log_;
};

}  // namespace idem::tests
