// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include <idem/detail/handler_failure.hpp>
#include <idem/detail/key_gate.hpp>
#include <idem/error.hpp>
#include <idem/store.hpp>

namespace idem {

/// The state of a MemoryStore that keeps keys only.
struct NoState {};

/// A store in memory, as strict as a table: for unit tests of handlers, and the template for new stores.
///
/// `State` is what the handlers under test change, any copyable type. A handler works on a copy that is
/// published when it returns and dropped when it throws. One state transaction runs at a time; a second one
/// begun inside it, on the same thread, throws ConfigurationError (it could only wait for itself).
///
/// Guarantee: everything is gone with the process.
/// Thread safety: any number of threads.
template <std::copyable State = NoState>
class MemoryStore {
 public:
  /// What a handler is given.
  class Transaction {
   public:
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;

    /// The working copy; published when the handler returns.
    [[nodiscard]] State& state() noexcept { return *state_; }

   private:
    friend MemoryStore;
    explicit Transaction(const State& committed) : state_{std::make_shared<State>(committed)} {}
    std::shared_ptr<State> state_;
  };

  MemoryStore() = default;
  explicit MemoryStore(State initial) : committed_{std::make_shared<State>(std::move(initial))} {}
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  /// A copy of what is committed.
  [[nodiscard]] State state() const {
    const std::lock_guard lock{mutex_};
    return *committed_;
  }

  /// How many keys are committed.
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock{mutex_};
    return rows_.size();
  }

  /// See TransactionalStore.
  [[nodiscard]] Applied apply(const Claim& claim, Effect<Transaction> effect) {
    if (runner_ == std::this_thread::get_id())
      throw ConfigurationError{
          "a handler on a MemoryStore called a consumer on the same store: the inner call would wait for its own caller; give the inner consumer a store of its own, or call it after the outer call returned"};
    const auto now = std::chrono::steady_clock::now();
    const auto wait = claim.on_concurrent == Concurrent::defer ? Duration{0} : claim.wait_limit;
    const auto pass = gate_.enter(claim.key, now + wait, claim.stop);
    if (!pass) return Busy{};
    if (auto row = find(claim.key)) return *std::move(row);
    return run(claim, effect);
  }

 private:
  [[nodiscard]] std::optional<Found> find(const Key& key) const {
    const std::lock_guard lock{mutex_};
    const auto row = rows_.find(key);
    if (row == rows_.end()) return std::nullopt;
    return row->second;
  }

  [[nodiscard]] Applied run(const Claim& claim, Effect<Transaction>& effect) {
    const StateTurn turn{*this};
    Transaction tx{*committed_};  // only the holder of the turn writes committed_
    try {
      StoredValue value = effect(tx);
      const std::lock_guard lock{mutex_};
      rows_.emplace(claim.key, Found{next_token(), claim.fingerprint, std::move(value)});
      committed_ = std::move(tx.state_);
      return Committed{};
    } catch (...) {
      return detail::handler_failure();
    }
  }

  /// The right to run the one state transaction.
  class StateTurn {
   public:
    explicit StateTurn(MemoryStore& store) : store_{store} {
      store_.turn_.lock();
      store_.runner_ = std::this_thread::get_id();
    }
    StateTurn(const StateTurn&) = delete;
    StateTurn& operator=(const StateTurn&) = delete;
    ~StateTurn() {
      store_.runner_ = std::thread::id{};
      store_.turn_.unlock();
    }

   private:
    MemoryStore& store_;
  };

  [[nodiscard]] ClaimToken next_token() noexcept {
    ClaimToken token;
    const std::uint64_t number = ++tokens_;
    std::memcpy(token.bytes.data(), &number, sizeof number);
    return token;
  }

  detail::KeyGate gate_;
  std::mutex turn_;
  std::atomic<std::thread::id> runner_{};
  mutable std::mutex mutex_;
  std::unordered_map<Key, Found> rows_;
  std::shared_ptr<const State> committed_ = std::make_shared<const State>();
  std::uint64_t tokens_ = 0;
};

}  // namespace idem
