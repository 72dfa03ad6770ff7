// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace idem {

/// What a handler publishes: `enqueue(tx, message)` stores it in the handler's own transaction, so it is sent
/// if, and only if, the effect is committed; a relay sends it afterwards, at least once.
///
/// Limits, in bytes: topic 255 (not blank), key 512, id 255, a header's name 255 (not blank), names and values
/// of all headers 65,536 together, payload 16 MiB. All text is UTF-8 without NUL.
struct OutboxMessage {
  std::string topic = {};
  /// Messages of a tenant with the same key are sent one after another; empty orders nothing.
  std::string key = {};
  /// Any bytes.
  std::string payload = {};
  std::map<std::string, std::string> headers = {};
  /// What receivers deduplicate by, unique per tenant. Empty: it is derived from the event and the message's
  /// place in its handler's run, so that a run that is rolled back and made again publishes under the same id.
  std::string id = {};
};

/// What a relay hands over to be sent.
struct Outgoing {
  OutboxMessage message = {};
  std::uint32_t attempts = 0;  ///< that failed before
  // Of the event whose handler published it; no event where a handler of many published it.
  std::string tenant = {};
  std::string consumer = {};
  std::string event_id = {};
  std::chrono::system_clock::time_point enqueued_at = {};  ///< by the store's clock
};

}  // namespace idem
