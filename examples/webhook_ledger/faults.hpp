// SPDX-License-Identifier: MIT
#pragma once

// What goes wrong during a run, on purpose. All of it is drawn from the seed; when it meets what is up to the
// machine.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "broker.hpp"
#include "support/fault_proxy.hpp"
#include "tables.hpp"

namespace webhook_ledger {

struct FaultCounts {
  std::size_t connections_cut = 0;  ///< by the proxy, wherever they were
  std::size_t answers_dropped = 0;  ///< of these, COMMITs that the server has had and the worker not heard of
  std::size_t commits_swallowed = 0;  ///< of these, COMMITs that never reached the server
  std::size_t backends_terminated = 0;
  std::size_t outages = 0;
};

/// A proxy between the workers and the server, and a hand that kills workers and their server processes, and
/// twice makes the server unreachable for a moment.
class Faults {
 public:
  Faults(std::uint64_t seed, std::size_t deliveries) : random_{seed}, proxy_{socket_folder()} {
    using idem::tests::Cut;
    // COMMIT is where it hurts: about one of four deliveries meets a fault there.
    for (std::size_t i = 0; i < std::max<std::size_t>(6, deliveries / 4); ++i) {
      const Cut cut = i % 3 == 2 ? Cut::before_server : i % 3 == 1 ? Cut::answer_unawaited : Cut::answer;
      proxy_.arm({.cut = cut, .word = "COMMIT", .nth = between(1, 4)});
    }
    // And anywhere else, in a thousand exchanges or connections.
    proxy_.arm_plan({.seed = seed,
                     .before_server = 5,
                     .inside = 2,
                     .answer_unawaited = 4,
                     .answer = 5,
                     .inside_answer = 4,
                     .refuse = 20});
    const std::size_t blows = std::clamp<std::size_t>(deliveries / 20, 4, 12);
    for (std::size_t i = 0; i < blows; ++i) {
      plan(Deed::kill_a_worker, deliveries);
      plan(Deed::terminate_a_backend, deliveries);
    }
    plan(Deed::begin_an_outage, deliveries);
    plan(Deed::begin_an_outage, deliveries);
  }

  /// Where the workers connect to.
  [[nodiscard]] std::string where() const { return proxy_.dsn(); }

  /// Does what is due by now.
  void meddle(Broker& broker, Tables& tables) {
    if (Clock::now() > outage_ends_) proxy_.refuse_connections(idem::tests::Refuse::no);
    for (Blow& blow : blows_) {
      if (broker.counts().settled < blow.after) continue;
      if (blow.due == Clock::time_point{}) blow.due = Clock::now() + blow.and_then;
      if (Clock::now() < blow.due) continue;
      strike(blow.deed, broker, tables);
      blow.done = true;
    }
    std::erase_if(blows_, [](const Blow& blow) { return blow.done; });
  }

  [[nodiscard]] FaultCounts counts() const {
    FaultCounts counts{
        .connections_cut = proxy_.fired(), .backends_terminated = terminated_, .outages = outages_};
    for (const std::string& line : proxy_.log()) {
      const auto seen = [&](std::string_view what) { return line.find(what) != std::string::npos; };
      if (!seen("COMMIT")) continue;
      if (seen("-> answer") || seen("-> inside_answer")) ++counts.answers_dropped;
      if (seen("-> before_server") || line.substr(line.size() - 6) == "inside") ++counts.commits_swallowed;
    }
    return counts;
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Deed { kill_a_worker, terminate_a_backend, begin_an_outage };
  struct Blow {
    Deed deed;
    std::size_t after;  ///< so many messages settled
    std::chrono::microseconds and_then;
    Clock::time_point due{};
    bool done = false;
  };

  /// At a random moment: after so many messages, and then at any point of the next.
  void plan(Deed deed, std::size_t deliveries) {
    blows_.push_back({deed, between(1, deliveries * 2), std::chrono::microseconds{between(0, 4000)}});
  }

  void strike(Deed deed, Broker& broker, Tables& tables) {
    switch (deed) {
      case Deed::kill_a_worker: return broker.kill_one();
      case Deed::terminate_a_backend:
        if (tables.terminate_a_backend()) ++terminated_;
        return;
      case Deed::begin_an_outage:
        proxy_.refuse_connections(idem::tests::Refuse::yes);
        proxy_.cut_all();
        outage_ends_ = Clock::now() + std::chrono::milliseconds{300};
        ++outages_;
    }
  }

  [[nodiscard]] static std::string socket_folder() {
    const char* host = std::getenv("PGHOST");
    if (host == nullptr || *host != '/')
      throw std::runtime_error{
          "the faults need a server on a unix socket: set PGHOST to its socket's folder, or use --no-faults"};
    return host;
  }
  [[nodiscard]] std::size_t between(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>{low, high}(random_);
  }

  std::mt19937_64 random_;
  std::vector<Blow> blows_;
  std::size_t terminated_ = 0;
  std::size_t outages_ = 0;
  Clock::time_point outage_ends_{};
  idem::tests::FaultProxy proxy_;
};

}  // namespace webhook_ledger
