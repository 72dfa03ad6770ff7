// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <idem/dead_letter.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>

namespace idem::postgres {

/// Whether dead letters keep the payload of `Event::payload`. Without it they cannot be redriven.
enum class KeepPayload { no, yes };

/// What dead letters keep.
struct DeadLetterOptions {
  KeepPayload payload = KeepPayload::no;
  /// Makes of a payload what may be stored; empty: it is stored as it is. What was redacted is for people: it is
  /// not redriven. When it throws nothing is recorded, and the message is brought back.
  std::function<std::string(std::string_view payload, const Event& event)> redact = {};
  /// In bytes, after the redaction. A larger payload is not kept, and its letter has none.
  std::size_t max_payload = std::size_t{1} << 20U;
};

/// What became of the payload.
enum class PayloadKept { none, original, redacted };

/// How a dead letter was closed.
enum class ClosedAs { redriven, discarded };

/// A dead letter as it is stored.
struct StoredDeadLetter : DeadLetterRecord {
  std::int64_t id = 0;  ///< what it is called in `discard` and `payload`
  PayloadKept payload_kept = PayloadKept::none;
  std::optional<std::string> payload = {};  ///< for the `decode` of a redrive only
  std::uint64_t redrives = 0;               ///< that came to an end; `recorded` does not count them
  std::uint64_t reopened = 0;               ///< how often it was closed and died again
  std::optional<Time> closed_at = {};       ///< nullopt: it is open
  std::optional<ClosedAs> closed_as = {};
  std::string closed_reason = {};
};

/// Which dead letters by whether somebody is still to look at them.
enum class LetterState { open, closed, any };

/// Which dead letters: those that agree with everything that is set.
struct DeadLetterFilter {
  std::optional<std::string> tenant = {};
  std::optional<std::string> consumer = {};
  std::optional<std::string> event_id = {};          ///< empty: those that could not be decoded
  std::optional<ErrorClass> kind = {};               ///< of the last cause
  std::optional<std::string> code = {};              ///< of the last cause
  std::optional<DeadLetterRecord::Time> since = {};  ///< died last at this time or later
  std::optional<DeadLetterRecord::Time> until = {};  ///< died last before it
  LetterState state = LetterState::open;             ///< `redrive` and `discard` take open ones only
};

/// Dead letters that died of the same.
struct DeadLetterGroup {
  std::string consumer = {};
  ErrorClass kind = ErrorClass::permanent;
  std::string code = {};
  std::string message = {};  ///< the first line
  std::uint64_t count = 0;
  DeadLetterRecord::Time oldest = {};  ///< when the first of them died first
  DeadLetterRecord::Time newest = {};  ///< when the last of them died last
  std::int64_t example = 0;            ///< the id of one of them
};

/// Whether a redrive only says what it would do.
enum class DryRun { no, yes };

struct RedriveOptions {
  /// The most letters that are given to the consumer.
  std::size_t limit = (std::numeric_limits<std::size_t>::max)();
  /// Handler starts in a second, at the most. Above 0.
  std::optional<std::uint32_t> per_second = {};
  /// `yes`: letters are decoded and checked, and counted as `ready` in place of being handled; nothing changes.
  DryRun dry_run = DryRun::no;
  /// Ends the redrive between two letters, and is given to the consumer.
  std::stop_token stop = {};
};

/// What a redrive did.
struct RedriveReport {
  struct Skipped {
    std::uint64_t locked = 0;         ///< somebody else is at work on it, or has just closed it
    std::uint64_t undecodable = 0;    ///< it never had an event: `record_undecodable`
    std::uint64_t no_payload = 0;     ///< its payload was not kept
    std::uint64_t redacted = 0;       ///< its payload is not the original one
    std::uint64_t not_decoded = 0;    ///< `decode` returned nothing, or `event_of` threw
    std::uint64_t another_event = 0;  ///< the message is of another tenant or event, or says something else

    [[nodiscard]] std::uint64_t all() const noexcept {
      return locked + undecodable + no_payload + redacted + not_decoded + another_event;
    }
  };

  std::uint64_t applied = 0;    ///< handled now, and closed
  std::uint64_t duplicate = 0;  ///< had been handled before, and closed
  std::uint64_t failed = 0;     ///< failed again, and stay open with their new cause
  std::uint64_t ready = 0;      ///< would be handled: a dry run
  Skipped skipped = {};         ///< left as they are
  std::uint64_t pauses = 0;     ///< made to keep to `per_second`

  [[nodiscard]] std::uint64_t considered() const noexcept {
    return applied + duplicate + failed + ready + skipped.all();
  }
};

}  // namespace idem::postgres
