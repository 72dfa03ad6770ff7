// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/testing/scheduler.hpp>

#include "simulation/database.hpp"
#include "simulation/referee.hpp"

namespace idem::tests::simulation {

/// A relay by the rules of OutboxRelay: claims the beginnings of lanes that
/// nobody holds, publishes them in order, notes what was sent, and may die or
/// fail at any point of that.
class Relay {
 public:
  Relay(int name, Database& database, Referee& referee, std::vector<std::string>& names)
      : name_{name}, database_{database}, referee_{referee}, names_{names} {}
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  enum class Luck { good, changing };

  [[nodiscard]] bool has_work() {
    const auto unsent = [](const OutboxRow& row) { return !row.sent; };
    return !batch_.empty() || (std::any_of(rows().begin(), rows().end(), unsent) && !claimable().empty());
  }

  void step(Luck luck) {
    if (batch_.empty()) return claim();
    const bool unlucky = luck == Luck::changing && database_.scheduler().chance(20);
    if (unlucky && database_.scheduler().chance(50)) return die();
    if (unlucky || next_ == batch_.size()) return mark();
    publish(batch_[next_++]);
  }

 private:
  static constexpr std::size_t per_lane = 2;
  static constexpr Duration hold = std::chrono::seconds{10};

  [[nodiscard]] std::vector<OutboxRow>& rows() { return database_.tables().outbox; }

  /// The first unsent rows of each lane that nobody holds, in the order of
  /// their insertion.
  [[nodiscard]] std::vector<std::size_t> claimable() {
    std::vector<std::size_t> unsent;
    for (std::size_t i = 0; i < rows().size(); ++i)
      if (!rows()[i].sent) unsent.push_back(i);
    std::sort(unsent.begin(), unsent.end(),
              [&](std::size_t a, std::size_t b) { return rows()[a].seq < rows()[b].seq; });
    std::vector<std::size_t> picked;
    for (const std::size_t i : unsent) {
      const std::size_t lane = rows()[i].lane;
      const auto of_lane = [&](std::size_t other) { return rows()[other].lane == lane; };
      const bool held = std::any_of(unsent.begin(), unsent.end(), [&](std::size_t other) {
        return of_lane(other) && rows()[other].claimed_until > database_.now();
      });
      if (!held && std::count_if(picked.begin(), picked.end(), of_lane) < std::ptrdiff_t{per_lane})
        picked.push_back(i);
    }
    return picked;
  }

  void claim() {
    batch_ = claimable();
    next_ = 0;
    committed_ = rows().size();
    for (const std::size_t i : batch_) {
      rows()[i].claimed_by = name_;
      rows()[i].claimed_until = database_.now() + hold;
      tell(rows()[i], "claims the message of");
    }
  }

  /// An earlier one of its key that was committed after this batch was claimed
  /// has no claim to be first.
  void publish(std::size_t i) {
    OutboxRow& row = rows()[i];
    tell(row, "publishes the message of");
    for (std::size_t other = 0; other < committed_; ++other)
      if (rows()[other].lane == row.lane && rows()[other].seq < row.seq && !rows()[other].published)
        referee_.blame(names_[row.event],
                       "a message was published before an earlier one of its key, that of " +
                           names_[rows()[other].event]);
    row.published = true;
  }

  /// Of the rows that it still holds; what it did not send is given back.
  void mark() {
    for (std::size_t n = 0; n < batch_.size(); ++n) {
      OutboxRow& row = rows()[batch_[n]];
      if (row.claimed_by != name_) continue;
      row.sent = n < next_;
      row.claimed_by = -1;
      row.claimed_until = {};
    }
    batch_.clear();
  }

  void die() {
    for (const std::size_t i : batch_) tell(rows()[i], "dies with the message of");
    name_ += 10;  // who starts in its place is somebody else
    batch_.clear();
  }

  void tell(const OutboxRow& row, const char* does) {
    database_.scheduler().tell(
        names_[row.event], [&] { return fmt::format("  relay {} {} {}", name_, does, names_[row.event]); });
  }

  int name_;
  Database& database_;
  Referee& referee_;
  std::vector<std::string>& names_;
  std::vector<std::size_t> batch_ = {};
  std::size_t next_ = 0;
  std::size_t committed_ = 0;  ///< how many rows there were when the batch was claimed
};

}  // namespace idem::tests::simulation
