// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <idem/duration.hpp>

namespace idem {

/// Thrown by what publishes: the broker cannot be reached, or takes nothing now; it says nothing of the message.
///
/// The relay gives back what it holds, counts no attempt, and pauses. With `retry_after`, for so long at least.
class BrokerDown : public std::runtime_error {
 public:
  explicit BrokerDown(const std::string& what, std::optional<Duration> retry_after = {})
      : std::runtime_error{what}, retry_after_{retry_after} {}

  [[nodiscard]] std::optional<Duration> retry_after() const noexcept { return retry_after_; }

 private:
  std::optional<Duration> retry_after_;
};

/// What became of one message of those that were published together.
class Published {
 public:
  enum class Fate {
    sent,
    failed,      ///< to be tried again, as the retry policy says
    dead,        ///< can never be sent
    broker_down  ///< not the message's fault: see BrokerDown
  };

  [[nodiscard]] static Published sent() { return Published{Fate::sent, {}, {}}; }
  /// With `retry_after`: not tried again sooner.
  [[nodiscard]] static Published failed(std::string why, std::optional<Duration> retry_after = {}) {
    return Published{Fate::failed, std::move(why), retry_after};
  }
  [[nodiscard]] static Published dead(std::string why) { return Published{Fate::dead, std::move(why), {}}; }
  [[nodiscard]] static Published broker_down(std::string why, std::optional<Duration> retry_after = {}) {
    return Published{Fate::broker_down, std::move(why), retry_after};
  }

  [[nodiscard]] Fate fate() const noexcept { return fate_; }
  /// Its first line is stored, up to 500 bytes: it should not hold what the message says.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  [[nodiscard]] std::optional<Duration> retry_after() const noexcept { return retry_after_; }

 private:
  Published(Fate fate, std::string why, std::optional<Duration> retry_after)
      : fate_{fate}, why_{std::move(why)}, retry_after_{retry_after} {}

  Fate fate_;
  std::string why_;
  std::optional<Duration> retry_after_;
};

}  // namespace idem
