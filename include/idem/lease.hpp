// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <idem/duration.hpp>

namespace idem {

/// What a handler is given whose effect is outside the store: an e-mail, a payment provider, a file.
///
/// While it lives nobody else works on the event, unless the lease ends first. That cannot be ruled out (a
/// paused process, a slow network), so the destination should help: pass `idempotency_key()` on where it
/// takes one, or `token()` to a table of yours that refuses a smaller one (`UPDATE … WHERE last_token <=
/// $token`).
///
/// Guarantee: after a crash at any point the next delivery runs the handler again, with a greater token and
/// the same idempotency key; once the result is recorded it never runs again.
/// Thread safety: any number of threads.
class Lease {
 public:
  /// Asks the store to move the lease's end; false: it is lost.
  using Extend = std::function<bool(Duration)>;

  Lease(std::uint64_t token, std::string idempotency_key, Extend extend)
      : token_{token}, idempotency_key_{std::move(idempotency_key)}, extend_{std::move(extend)} {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// The fencing token: grows with every acquisition, over all keys.
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }

  /// The same for every delivery of this event to this consumer, for ever: 64 hexadecimal digits.
  [[nodiscard]] const std::string& idempotency_key() const noexcept { return idempotency_key_; }

  /// Moves the lease's end to `length` from now, by the store's clock. A store that cannot be reached changes
  /// nothing; a successor makes the lease lost.
  ///
  /// Throws: std::invalid_argument — `length` is not above zero.
  void extend(Duration length) {
    if (length <= Duration{0})
      throw std::invalid_argument{
          "Lease::extend: the length is not above zero; return or throw to end the lease"};
    if (!lost() && !extend_(length)) lost_.store(true, std::memory_order_relaxed);
  }

  /// Whether a successor is known to have taken over: stop, its effect is the one that counts.
  [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

 private:
  std::uint64_t token_;
  std::string idempotency_key_;
  Extend extend_;
  std::atomic<bool> lost_ = false;
};

}  // namespace idem
