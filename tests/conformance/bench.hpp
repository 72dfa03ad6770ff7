// SPDX-License-Identifier: MIT
#pragma once

// What the behaviours of a consumer are shown with, whatever the store.
//
// A Bench holds one store, empty and of its own, and knows how a handler on it does something that can be seen:
//
//   typename Bench::Store            models TransactionalStore
//   Store& store                     the store of the consumer under test
//   Store& rival()                   a store over the same keys, as another process would have it
//   void write(Transaction&, n)      the effect: adds n to a sum, in the handler's transaction
//   std::int64_t seen(Transaction&)  the sum as this transaction sees it
//   std::int64_t sum()               the sum that is committed
//   std::size_t keys()               how many keys are committed
//   void until_waited_for(store)     returns when a call waits for a key that is held through that store, as far
//                                    as this can be seen from outside
//   static constexpr bool runs_at_once   handlers of different events run at once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/consumer.hpp>
#include <idem/fingerprint.hpp>
#include <idem/observer.hpp>
#include <idem/outcome.hpp>
#include <idem/runtime.hpp>

#include "support/catch.hpp"

namespace idem::tests {

struct Payment {
  std::string id = "p-1";
  std::int64_t amount = 1;
  std::string tenant = {};
  std::int64_t delivery = 1;
};

[[nodiscard]] inline Event event_of(const Payment& p) {
  return {
      .tenant = p.tenant, .id = p.id, .fingerprint = fingerprint_of(p.amount), .delivery_count = p.delivery};
}

/// One behaviour: a sentence, and what shows it on a fresh bench.
template <class Bench>
struct Behaviour {
  std::string sentence;
  std::function<void(Bench&)> show;
};

/// Runs each behaviour as a section of the test case it is called from.
template <class Bench>
void show_all(const std::vector<Behaviour<Bench>>& behaviours) {
  for (const Behaviour<Bench>& behaviour : behaviours) {
    DYNAMIC_SECTION(behaviour.sentence) {
      Bench bench;
      behaviour.show(bench);
    }
  }
}

template <class Bench>
using TransactionOn = typename Bench::Store::Transaction;

/// A handler that does the effect of a payment, and counts its starts.
template <class Bench>
[[nodiscard]] auto paying(Bench& bench, int& starts) {
  return [&bench, &starts](TransactionOn<Bench>& tx, const Payment& p) {
    ++starts;
    bench.write(tx, p.amount);
  };
}

/// As above, and then throws what `fail(start number)` throws; the effect was done by then.
template <class Bench, class Fail>
[[nodiscard]] auto failing(Bench& bench, int& starts, Fail fail) {
  return [&bench, &starts, fail](TransactionOn<Bench>& tx, const Payment& p) {
    ++starts;
    bench.write(tx, p.amount);
    fail(starts);
  };
}

[[nodiscard]] inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// A clock that only sleeping moves on, and an engine of one number. For one thread.
class FakeTime {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  [[nodiscard]] Runtime runtime(std::uint64_t random = 0) {
    return {.clock = [this] { return now_; },
            .sleeper =
                [this](TimePoint until, const std::stop_token&) {
                  slept_.push_back(until - now_);
                  now_ = until;
                  if (on_sleep) on_sleep();
                },
            .engine = [random] { return random; }};
  }
  [[nodiscard]] const std::vector<Duration>& slept() const noexcept { return slept_; }
  [[nodiscard]] TimePoint now() const noexcept { return now_; }

  std::function<void()> on_sleep = {};

 private:
  TimePoint now_{std::chrono::hours{1}};
  std::vector<Duration> slept_ = {};
};

/// Keeps what it was told.
class Recorder {
 public:
  struct Entry {
    Observed what;
    std::string key;
    std::uint32_t attempts;
    std::string failure;
    Duration delay;
    Duration elapsed;
    Status status;
    Action action;
  };

  void observe(const Observation& o) {
    const std::lock_guard lock{mutex_};
    entries_.push_back({o.what, o.key.to_string(), o.attempts, o.failure != nullptr ? o.failure->message : "",
                        o.delay, o.elapsed, o.status, o.action});
  }
  [[nodiscard]] std::vector<Entry> entries() const {
    const std::lock_guard lock{mutex_};
    return entries_;
  }
  [[nodiscard]] std::vector<Observed> told() const {
    std::vector<Observed> whats;
    for (const Entry& entry : entries()) whats.push_back(entry.what);
    return whats;
  }
  [[nodiscard]] int count(Observed what) const {
    int found = 0;
    for (const Observed one : told()) found += one == what ? 1 : 0;
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_ = {};
};

/// Checks what an outcome tells the transport, and that a failure is named exactly when there is one.
template <class R>
void check_outcome(const Outcome<R>& outcome, Status status, Action action, std::uint32_t attempts) {
  CHECK(to_string(outcome.status) == to_string(status));
  CHECK(to_string(outcome.action) == to_string(action));
  CHECK(outcome.attempts == attempts);
  CHECK(outcome.failure.has_value() == (status != Status::applied && status != Status::duplicate));
  CHECK_FALSE(outcome.resolved_in_doubt);
  if (action != Action::redeliver) CHECK(outcome.redeliver_after == Duration{0});
}

}  // namespace idem::tests
