// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <idem/duration.hpp>

namespace idem::postgres {

/// What a relay did in one round.
struct RelayReport {
  std::uint64_t claimed = 0;     ///< messages taken, each of which is one of the next four
  std::uint64_t sent = 0;        ///< accepted by the broker
  std::uint64_t failed = 0;      ///< to be tried again
  std::uint64_t dead = 0;        ///< given up
  std::uint64_t given_back = 0;  ///< not tried: behind one that failed, at a stop, or the broker is down
  bool broker_down = false;      ///< the relay pauses
  std::string error = {};        ///< of the last failure, or why the store cannot be asked
  Duration next_in{};  ///< nothing is to be done before, as far as this relay knows; 0: ask again now
};

/// How long a relay pauses when the broker is down: twice as long each time, drawn from the upper half.
struct BreakerOptions {
  Duration first_pause = std::chrono::seconds{1};
  Duration longest_pause = std::chrono::minutes{1};
};

/// How a relay works.
struct RelayOptions {
  /// The most messages that one claim takes; it takes no more once it has 16 MiB of payloads. From 1 to 10,000.
  std::size_t batch = 100;
  /// The most messages of one key that one claim takes, to be sent one after another. At least 1.
  std::size_t per_key = 10;
  /// How long a claim lasts before another relay may take its messages. No message is begun in its last quarter:
  /// publishing that takes longer than that may overtake itself.
  Duration claim = std::chrono::seconds{30};
  /// The longest that `run` waits when there is nothing to do.
  Duration poll = std::chrono::seconds{1};
  BreakerOptions breaker = {};
  /// Told of each round of `run`, on its thread, those that found nothing included. What it throws is dropped.
  std::function<void(const RelayReport&)> on_round = {};
};

}  // namespace idem::postgres
