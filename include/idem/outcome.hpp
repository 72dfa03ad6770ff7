// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <idem/duration.hpp>
#include <idem/error.hpp>

namespace idem {

/// What became of one delivery.
enum class Status {
  applied,      ///< the effect is committed, by this call
  duplicate,    ///< the effect was committed by an earlier delivery
  in_progress,  ///< somebody else is at work on the event, or its COMMIT is still in doubt
  mismatch,     ///< the event id is taken by a message that says something else
  deferred,     ///< not done now; bring it back later
  rejected      ///< can never be done
};

/// What to tell the transport.
enum class Action {
  acknowledge,  ///< delete the message, commit the offset, answer 200
  redeliver,    ///< bring it back, no sooner than `Outcome::redeliver_after`
  dead_letter   ///< take it out of the queue, where somebody will look at it
};

/// Why a call did not end in `applied` or `duplicate`.
///
/// `message` is for people and logs: it never holds payloads or SQL parameters (of a server's error only the
/// first line is kept). `code` is for programs: a SQLSTATE, or one of `idem::code`.
struct Failure {
  ErrorClass kind = ErrorClass::transient;
  std::string code = {};
  std::string message = {};
};

/// The codes of `Failure` that are ours; every other code is a SQLSTATE.
namespace code {
inline constexpr std::string_view invalid_key = "invalid_key";
inline constexpr std::string_view event_of_failed = "event_of_failed";
inline constexpr std::string_view beyond_window = "beyond_window";
inline constexpr std::string_view mismatch = "mismatch";
inline constexpr std::string_view lease_lost = "lease_lost";
inline constexpr std::string_view completion_unknown = "completion_unknown";
inline constexpr std::string_view transaction_ended_by_handler = "transaction_ended_by_handler";
inline constexpr std::string_view precondition_failed = "precondition_failed";
inline constexpr std::string_view in_doubt = "in_doubt";
inline constexpr std::string_view held_back = "held_back";
inline constexpr std::string_view crashed = "crashed";
}  // namespace code

/// What one call did, and what to tell the transport. `R` is what the handler returns, `monostate` for void.
template <class R = std::monostate>
struct [[nodiscard]] Outcome {
  Status status = Status::deferred;
  Action action = Action::redeliver;
  Duration redeliver_after{};           ///< for `redeliver`: no sooner than this
  std::uint32_t attempts = 0;           ///< times the handler was started in this call
  std::optional<R> value = {};          ///< the handler's result: this call's, or the stored one
  bool replayed = false;                ///< `value` comes from the store
  bool resolved_in_doubt = false;       ///< a COMMIT's answer was lost, and its fate found out
  std::optional<Failure> failure = {};  ///< set unless applied or duplicate
};

[[nodiscard]] constexpr std::string_view to_string(Status status) noexcept {
  switch (status) {
    case Status::applied: return "applied";
    case Status::duplicate: return "duplicate";
    case Status::in_progress: return "in_progress";
    case Status::mismatch: return "mismatch";
    case Status::deferred: return "deferred";
    case Status::rejected: return "rejected";
  }
  return "unknown";
}

[[nodiscard]] constexpr std::string_view to_string(Action action) noexcept {
  switch (action) {
    case Action::acknowledge: return "acknowledge";
    case Action::redeliver: return "redeliver";
    case Action::dead_letter: return "dead_letter";
  }
  return "unknown";
}

}  // namespace idem
