// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/messenger.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// Counts starts of handlers.
///
/// It has one connection of its own, opened when it is first used: a call that counts holds one already, and
/// must not wait for another. An end that an outage kept from being told is told later, as long as the
/// process lives, or it would look like a crash.
class Counter {
 public:
  Counter(const Statements& statements, const Connector& connector, const PostgresOptions& options)
      : statements_{statements}, messenger_{pool_, connector, options} {}

  [[nodiscard]] Started start(const Claim& claim) {
    tell_untold(claim);
    const ClaimToken token = random_token();
    const auto answer = messenger_.ask(statements_.start(claim, token), claim.wait_limit, claim.stop);
    if (const auto* rows = std::get_if<pqxx::result>(&answer))
      return Start{token, (*rows)[0][0].as<std::uint64_t>()};
    if (std::holds_alternative<Busy>(answer)) return locked("the event's count of starts is locked");
    const Failed& failed = std::get<Failed>(answer);
    // It may have been counted, and the handler is not started.
    if (may_be_done(failed)) keep(statements_.end(claim, {.token = token}, StartEnd::not_counted));
    return failed;
  }

  [[nodiscard]] Held end(const Claim& claim, const Start& start, StartEnd how) {
    const std::string message = statements_.end(claim, start, how);
    Held held = messenger_.tell(message, claim.wait_limit);
    if (std::holds_alternative<Failed>(held)) keep(message);
    return held;
  }

 private:
  static constexpr std::size_t most_untold = 1'000;

  void keep(std::string message) {
    const std::lock_guard lock{mutex_};
    if (untold_.size() < most_untold) untold_.push_back(std::move(message));
  }

  /// Whatever the server answers ends a message; without an answer it is kept.
  void tell_untold(const Claim& claim) {
    std::vector<std::string> messages;
    {
      const std::lock_guard lock{mutex_};
      messages.swap(untold_);
    }
    for (auto message = messages.begin(); message != messages.end(); ++message) {
      const Held held = messenger_.tell(*message, claim.wait_limit);
      const auto* failed = std::get_if<Failed>(&held);
      if (failed == nullptr || failed->failure.kind != ErrorClass::reconnect) continue;
      const std::lock_guard lock{mutex_};
      untold_.insert(untold_.end(), std::make_move_iterator(message),
                     std::make_move_iterator(messages.end()));
      return;
    }
  }

  const Statements& statements_;
  Pool pool_{1};
  Messenger messenger_;
  std::mutex mutex_;
  std::vector<std::string> untold_ = {};
};

}  // namespace idem::postgres::detail
