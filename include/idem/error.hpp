// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <idem/duration.hpp>

namespace idem {

/// What kind of failure this was, which decides what happens next.
enum class ErrorClass {
  transient,  ///< may succeed when tried again; the retry policy decides
  throttled,  ///< as transient, and the other side said when to come back
  reconnect,  ///< the connection or the store is gone; a new connection, then as transient, never rejected
  in_doubt,   ///< a COMMIT was sent and its answer lost; resolved before anything else
  permanent,  ///< will fail the same way for ever; rejected
  configuration,  ///< the set-up is wrong, not the message; thrown as ConfigurationError
  cancelled       ///< the caller's stop token asked for the message back
};

[[nodiscard]] constexpr std::string_view to_string(ErrorClass kind) noexcept {
  switch (kind) {
    case ErrorClass::transient: return "transient";
    case ErrorClass::throttled: return "throttled";
    case ErrorClass::reconnect: return "reconnect";
    case ErrorClass::in_doubt: return "in_doubt";
    case ErrorClass::permanent: return "permanent";
    case ErrorClass::configuration: return "configuration";
    case ErrorClass::cancelled: return "cancelled";
  }
  return "unknown";
}

/// Thrown by a handler: this may succeed later. With `retry_after`, no sooner than that.
///
/// A negative `retry_after` says: do not retry within this call.
class TransientError : public std::runtime_error {
 public:
  explicit TransientError(const std::string& what, std::optional<Duration> retry_after = {})
      : std::runtime_error{what}, retry_after_{retry_after} {}

  [[nodiscard]] std::optional<Duration> retry_after() const noexcept { return retry_after_; }

 private:
  std::optional<Duration> retry_after_;
};

/// Thrown by a handler: this message can never succeed; it is rejected without another try.
class PermanentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by a handler: the business row was not in the expected state.
///
/// The message may only be early, so it is not retried within the call: `Redeliver` decides.
class PreconditionFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The one exception a consumer's call lets out: the set-up is wrong, and no message can be handled until it
/// is mended. A worker should stop on it; nothing was stored, acknowledged or dead-lettered.
class ConfigurationError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace idem
