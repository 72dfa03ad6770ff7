// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <idem/outcome.hpp>

namespace idem::tests::simulation {

/// One event, and how it is handled.
struct Happening {
  bool in_database = true;
  bool poison = false;
  std::size_t lane = 0;
  bool rejected = false;
  std::size_t deeds = 0;  ///< what its handler did outside, under one idempotency key
  std::string key_outside = {};
};

/// One message in the broker's queue: an event may have several.
struct Message {
  std::size_t event = 0;
  std::int64_t deliveries = 0;
  std::chrono::steady_clock::time_point visible_at = {};
  bool gone = false;
};

/// How often the schedules met what they are for.
struct Met {
  std::uint64_t crashes = 0;
  std::uint64_t resolved = 0;
  std::uint64_t unresolved = 0;
  std::uint64_t rejected = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t in_progress = 0;
  std::uint64_t leases_lost = 0;
  std::uint64_t takeovers = 0;
  std::uint64_t overlaps = 0;  ///< handlers that were at work at the same time

  void add(const Met& more) {
    crashes += more.crashes;
    resolved += more.resolved;
    unresolved += more.unresolved;
    rejected += more.rejected;
    duplicates += more.duplicates;
    in_progress += more.in_progress;
    leases_lost += more.leases_lost;
    takeovers += more.takeovers;
    overlaps += more.overlaps;
  }

  void count(const Outcome<>& outcome) {
    if (outcome.resolved_in_doubt) ++resolved;
    if (outcome.status == Status::rejected) ++rejected;
    if (outcome.status == Status::duplicate) ++duplicates;
    if (outcome.status == Status::in_progress) ++in_progress;
    if (!outcome.failure) return;
    if (outcome.failure->code == code::in_doubt) ++unresolved;
    if (outcome.failure->code == code::lease_lost) ++leases_lost;
  }
};

}  // namespace idem::tests::simulation
