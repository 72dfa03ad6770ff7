// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>

#include <idem/event.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>

namespace idem {

/// A message that was rejected, or whose id was taken, on its way to a sink. Holds during the call only.
struct DeadLetter {
  const Key& key;
  const Event& event;
  const Failure& failure;
  std::uint32_t attempts = 0;  ///< handler starts in this call
};

/// Takes dead letters in and keeps them, so that the transport can be told to acknowledge.
///
/// `record` returns once the record is committed, apart from any handler's transaction, and throws if it could
/// not be made: the message is then brought back. A ConfigurationError stops the worker. It is called by the
/// consumer's threads, many at once, when the event's own transaction is over, once for each call that ends in
/// `Action::dead_letter`; not for a mismatch under `Mismatch::acknowledge`, and not for a message without a
/// valid key, which stays the transport's to put away. A crash between the record and the acknowledgement
/// brings the message back: it is then recorded again.
template <class T>
concept DeadLetterSink = requires(T& sink, const DeadLetter& letter) {
  sink.record(letter);
};

/// A dead letter as it is kept: one for each thing that was said under an event's id, however often it died.
struct DeadLetterRecord {
  using Time = std::chrono::system_clock::time_point;

  std::string tenant = {};
  std::string consumer = {};
  std::string event_id = {};     ///< empty: the message could not be decoded
  Fingerprint fingerprint = {};  ///< what the message said: a mismatch has a record beside the good event's
  std::uint64_t recorded = 1;    ///< how often
  Time first_at = {};
  Time last_at = {};
  Failure first = {};               ///< why it died first; texts are held to 1,000 bytes
  Failure last = {};                ///< and why last
  std::uint32_t attempts = 0;       ///< handler starts in the call that recorded it last
  std::int64_t delivery_count = 0;  ///< the transport's count then; 0: unknown
  std::string ordering_key = {};
  std::optional<Time> occurred_at = {};
};

}  // namespace idem
