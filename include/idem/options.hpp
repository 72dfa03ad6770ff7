// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>

#include <idem/duration.hpp>

namespace idem {

/// What to tell the transport about a message whose event id is taken by one that says something else.
enum class Mismatch { dead_letter, acknowledge };

/// What to do while another call holds the event: wait for its end, or give the message back at once.
enum class Concurrent { wait, defer };

/// Who counts the deliveries of an event: the transport (`Event::delivery_count`), or the store.
enum class Attempts { by_transport, counted_by_store };

/// How a consumer decides what its caller left open.
struct ConsumerOptions {
  Mismatch on_mismatch = Mismatch::dead_letter;
  Concurrent on_concurrent = Concurrent::wait;
  /// How long one call may wait for another that holds the same event; then `in_progress`. At least 1 ms.
  Duration wait_limit = std::chrono::seconds{5};
  /// How long one owner may work in lease mode; `nullopt` = never taken over. Not zero or below.
  std::optional<Duration> lease = std::chrono::seconds{60};
  /// Whether a lease is extended while the handler runs.
  bool heartbeat = true;
  /// How long a key counts; `nullopt` = for ever.
  std::optional<Duration> window = {};
  Attempts attempts = Attempts::by_transport;
};

}  // namespace idem
