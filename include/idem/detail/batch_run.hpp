// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/decisions.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>
#include <idem/store.hpp>

namespace idem::detail {

/// What an earlier transaction of the same call has left of a message.
template <class R>
struct Prior {
  std::optional<InDoubt> in_doubt = {};
  std::optional<ClaimToken> token = {};  ///< of a claim that was undone
  std::uint32_t starts = 0;
  std::optional<R> result = {};
};

/// One message of a batch on its way.
template <class R>
struct BatchEntry {
  const Event* event = nullptr;
  std::optional<Key> key = {};             ///< none: it could not be made, and `outcome` says why
  std::optional<Outcome<R>> outcome = {};  ///< once it is decided
  Prior<R> prior = {};
};

/// The ordering keys of which a message was not acknowledged: the rest of them waits.
class StoppedKeys {
 public:
  [[nodiscard]] bool stopped(const Event& event) const { return keys_.contains(event.ordering_key); }
  void stop(const Event& event) {
    if (!event.ordering_key.empty()) keys_.insert(event.ordering_key);
  }

 private:
  std::set<std::string, std::less<>> keys_;
};

/// Decides one message of a batch from what the store found of it.
template <class Terms>
class ItemDecision : public Decisions<Terms> {
 public:
  using Decisions<Terms>::Decisions;

  [[nodiscard]] Conclusion of(Committed) {
    ++this->attempts_;
    this->applied();
    return this->end(Resolved::no);
  }
  [[nodiscard]] Conclusion of(Found row) {
    this->found(std::move(row));
    return this->end(Resolved::no);
  }
};

/// Which messages of a batch may share a transaction: each key once, and behind no message of the same
/// ordering key that may not.
template <class R>
[[nodiscard]] std::vector<std::size_t> those_together(const std::vector<BatchEntry<R>>& entries,
                                                      std::chrono::steady_clock::time_point now) {
  std::vector<std::size_t> together;
  std::unordered_set<Key> seen;
  StoppedKeys stopped;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const bool fits = !entry.outcome && !stopped.stopped(*entry.event) &&
                      !(entry.event->visible_until && *entry.event->visible_until <= now) &&
                      seen.insert(*entry.key).second;
    if (fits)
      together.push_back(i);
    else
      stopped.stop(*entry.event);
  }
  return together;
}

/// A message that ended before its turn.
template <class R>
[[nodiscard]] Outcome<R> given_back(ErrorClass kind, std::string_view code, std::string_view why) {
  return {.status = Status::deferred,
          .action = Action::redeliver,
          .failure = Failure{kind, std::string{code}, std::string{why}}};
}

/// Handles what is not decided yet, one by one and in order. `one(index)` is a call for one message.
template <class R, class Now, class One>
void run_one_by_one(std::vector<BatchEntry<R>>& entries, Now now, One one) {
  StoppedKeys stopped;
  bool any_decided = false;
  for (const auto& entry : entries) any_decided = any_decided || entry.outcome.has_value();
  std::optional<std::string> misconfigured;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& entry = entries[i];
    if (!entry.outcome) {
      if (misconfigured)
        entry.outcome = given_back<R>(ErrorClass::configuration, {}, *misconfigured);
      else if (stopped.stopped(*entry.event))
        entry.outcome = given_back<R>(ErrorClass::transient, code::held_back,
                                      "an earlier message of the same ordering key was not acknowledged");
      else if (entry.event->visible_until && *entry.event->visible_until <= now() && !entry.prior.in_doubt)
        entry.outcome = given_back<R>(ErrorClass::transient, {},
                                      "the transport's hold on the message ended before its turn");
      else
        try {
          entry.outcome = one(i);
        } catch (const ConfigurationError& e) {
          if (!any_decided) throw;
          misconfigured = e.what();
          entry.outcome = given_back<R>(ErrorClass::configuration, {}, e.what());
        }
      any_decided = true;
    }
    if (entry.outcome->action != Action::acknowledge) stopped.stop(*entry.event);
  }
}

}  // namespace idem::detail
