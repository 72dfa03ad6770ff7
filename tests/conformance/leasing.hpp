// SPDX-License-Identifier: MIT
#pragma once

// What effects outside the store are shown with: an owner at work, a world to act in, a store that is watched.
//
// Besides what bench.hpp asks, a Bench of this suite has the store's own clock in hand:
//
//   void advance(Duration)           lets so much time pass for what is stored
//   time_point now()                 the store's time, as far as it may differ from the worker's
//   void forget()                    removes every key, as retention does; nothing where a store cannot
//   static constexpr int many        calls that the store answers in a second or two

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <latch>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <idem/lease.hpp>
#include <idem/store.hpp>

#include "conformance/bench.hpp"
#include "conformance/failures.hpp"

namespace idem::tests {

/// Waits for a condition that another thread fulfils; a bound instead of a hang.
class Signal {
 public:
  void tell(const std::function<void()>& change = [] {}) {
    {
      const std::lock_guard lock{mutex_};
      change();
    }
    changed_.notify_all();
  }
  void wait(const std::function<bool()>& condition) {
    std::unique_lock lock{mutex_};
    if (!changed_.wait_for(lock, std::chrono::seconds{60}, condition))
      throw std::runtime_error{"waited in vain"};
  }
  [[nodiscard]] bool wait_for(Duration limit, const std::function<bool()>& condition) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, limit, condition);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Asks again and again, at most for a minute.
inline void until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error{"asked in vain"};
    std::this_thread::yield();
  }
}

/// The outside world: what was done there, and with which right.
class World {
 public:
  struct Deed {
    std::string id;
    std::uint64_t token;
    std::string idempotency_key;
  };

  void act(const Lease& lease, const Payment& p) {
    const std::lock_guard lock{mutex_};
    deeds_.push_back({p.id, lease.token(), lease.idempotency_key()});
  }
  [[nodiscard]] std::vector<Deed> deeds() const {
    const std::lock_guard lock{mutex_};
    return deeds_;
  }
  [[nodiscard]] std::size_t count() const { return deeds().size(); }

 private:
  mutable std::mutex mutex_;
  std::vector<Deed> deeds_ = {};
};

[[nodiscard]] inline auto acting(World& world) {
  return [&world](Lease& lease, const Payment& p) { world.act(lease, p); };
}

/// No delay but what the event itself asks for.
[[nodiscard]] constexpr auto at_once() { return Redeliver{Immediate{}}; }

/// An owner of the event "p-1" of "mail.v1", at work until told how to end. It keeps its lease only if it is told to.
template <class Bench>
class Owner {
 public:
  explicit Owner(Bench& bench,
                 ConsumerOptions options = {.lease = std::chrono::seconds{60}, .heartbeat = false})
      : Owner{bench.store, options} {}
  Owner(typename Bench::Store& store, ConsumerOptions options)
      : thread_{[this, &store, options] {
          const IdempotentConsumer mail{"mail.v1", store,
                                        [&](Lease& lease, const Payment&) -> std::string {
                                          lease_ = &lease;
                                          at_work_.count_down();
                                          const auto ending = told_.get_future().get();
                                          ending();
                                          return "owner";
                                        },
                                        options, at_once()};
          outcome_ = mail(Payment{});
          lease_ = nullptr;
        }} {
    at_work_.wait();
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (thread_.joinable()) static_cast<void>(returns());
  }

  [[nodiscard]] Lease& lease() { return *lease_; }
  Outcome<std::string> returns() {
    return ends([] {});
  }
  Outcome<std::string> fails() {
    return ends([] { throw TransientError{"the mail server is down"}; });
  }

 private:
  Outcome<std::string> ends(std::function<void()> how) {
    told_.set_value(std::move(how));
    thread_.join();
    return outcome_;
  }

  std::latch at_work_{1};
  std::promise<std::function<void()>> told_;
  std::atomic<Lease*> lease_ = nullptr;
  Outcome<std::string> outcome_;
  std::thread thread_;
};

/// A store seen through a window: each verb of a lease is told of before and after.
template <class Store>
class Watched {
 public:
  using Transaction = typename Store::Transaction;

  explicit Watched(Store& store) : store_{store} {}

  Applied apply(const Claim& claim, Effect<Transaction> effect) { return store_.apply(claim, effect); }
  Acquired acquire(const Claim& claim, std::optional<Duration> lease) { return store_.acquire(claim, lease); }
  Held extend(const Claim& claim, const Grant& grant, Duration length) {
    before_extend();
    const Held held = store_.extend(claim, grant, length);
    after_extend();
    return held;
  }
  Held complete(const Claim& claim, const Grant& grant, const StoredValue& value) {
    before_complete();
    const Held held = store_.complete(claim, grant, value);
    after_complete();
    return held;
  }
  Held release(const Claim& claim, const Grant& grant) {
    before_release();
    return store_.release(claim, grant);
  }

  std::function<void()> before_extend = [] {};
  std::function<void()> after_extend = [] {};
  std::function<void()> before_complete = [] {};
  std::function<void()> after_complete = [] {};
  std::function<void()> before_release = [] {};

 private:
  Store& store_;
};

/// What is left of the lease on the event, by the store's clock; nullopt: it is not leased, or without an end.
template <class Bench>
[[nodiscard]] std::optional<Duration> rest_of_lease(Bench& bench, const Key& key) {
  const Acquired met = bench.rival().acquire({.key = key}, std::chrono::seconds{1});
  if (const auto* leased = std::get_if<Leased>(&met)) return leased->rest;
  return std::nullopt;
}

/// Of an outcome's failure; empty where there is none.
template <class R>
[[nodiscard]] std::string code_of(const Outcome<R>& outcome) {
  return outcome.failure ? outcome.failure->code : std::string{};
}
template <class R>
[[nodiscard]] std::string message_of(const Outcome<R>& outcome) {
  return outcome.failure ? outcome.failure->message : std::string{};
}
template <class R>
[[nodiscard]] std::optional<ErrorClass> kind_of(const Outcome<R>& outcome) {
  return outcome.failure ? std::optional{outcome.failure->kind} : std::nullopt;
}

/// Acquires, or fails the test.
template <class Store>
[[nodiscard]] Grant must_acquire(Store& store, const Claim& claim, std::optional<Duration> lease) {
  const Acquired met = store.acquire(claim, lease);
  REQUIRE(std::holds_alternative<Grant>(met));
  return std::get<Grant>(met);
}

template <class Answer, class Variant>
[[nodiscard]] bool is(const Variant& answer) {
  return std::holds_alternative<Answer>(answer);
}

}  // namespace idem::tests
