// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/handler_failure.hpp>
#include <idem/detail/key_gate.hpp>
#include <idem/detail/publishing.hpp>
#include <idem/error.hpp>
#include <idem/memory/dead_letters.hpp>
#include <idem/memory/outbox.hpp>
#include <idem/outbox.hpp>
#include <idem/retry/detail/saturating.hpp>
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
  /// The store's clock, which windows and leases go by; never the caller's.
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  /// What a handler is given.
  class Transaction {
   public:
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;

    /// The working copy; published when the handler returns.
    [[nodiscard]] State& state() noexcept { return *state_; }

    /// Publishes a message if, and only if, the handler's effect is committed; returns its id.
    ///
    /// Throws: PermanentError — the message breaks a rule of OutboxMessage, its id is taken, or a handler of
    /// many events gave it none.
    friend std::string enqueue(Transaction& tx, const OutboxMessage& message) {
      return tx.draft_.add(message);
    }

    /// Says for which event, or events, the handler works that is called next: not the handler's to call.
    void working_on(const Key& key) {
      draft_.work_on(detail::Publishing::for_event(key), store_.next_generation(key));
    }
    void working_on(std::span<const Key* const> keys) {
      draft_.work_on(detail::Publishing::for_events(keys), 0);
    }

   private:
    friend MemoryStore;
    /// Only the holder of the turn writes what is committed.
    explicit Transaction(const MemoryStore& store)
        : store_{store}, state_{std::make_shared<State>(*store.committed_)}, draft_{store.outbox_} {}
    const MemoryStore& store_;
    std::shared_ptr<State> state_;
    detail::MemoryOutbox::Draft draft_;
  };

  explicit MemoryStore(State initial = {}, Clock clock = std::chrono::system_clock::now)
      : clock_{std::move(clock)},
        committed_{std::make_shared<State>(std::move(initial))},
        dead_letters_{clock_} {}
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  /// A copy of what is committed.
  [[nodiscard]] State state() const {
    const std::lock_guard lock{mutex_};
    return *committed_;
  }

  /// A copy of what is published, in the order of the commits.
  [[nodiscard]] std::vector<OutboxMessage> outbox() const {
    const std::lock_guard lock{mutex_};
    return outbox_.messages();
  }

  /// What is published, as a relay would take it: it is no longer there afterwards.
  [[nodiscard]] std::vector<OutboxMessage> take_outbox() {
    const std::lock_guard lock{mutex_};
    return outbox_.take();
  }

  /// See DeadLetterSink: a consumer may take the store as its sink as well.
  void record(const DeadLetter& letter) { dead_letters_.record(letter); }

  /// A copy of the dead letters, oldest first.
  [[nodiscard]] std::vector<DeadLetterRecord> dead_letters() const { return dead_letters_.records(); }

  /// How many keys there are, leased ones included.
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock{mutex_};
    return rows_.size();
  }

  /// See TransactionalStore.
  [[nodiscard]] Applied apply(const Claim& claim, Effect<Transaction> effect) {
    refuse_nested_use();
    const auto now = std::chrono::steady_clock::now();
    const auto wait = claim.on_concurrent == Concurrent::defer ? Duration{0} : claim.wait_limit;
    const auto pass = gate_.enter(claim.key, detail::saturating_add(now, wait), claim.stop);
    if (!pass) return Busy{};
    {
      const std::lock_guard lock{mutex_};
      if (auto taken = taken_by_another<Applied>(claim)) return *std::move(taken);
    }
    return run(claim, effect);
  }

  /// See BatchStore.
  [[nodiscard]] BatchApplied apply_batch(std::span<const Claim> claims, BatchEffect<Transaction> effect) {
    refuse_nested_use();
    const auto passes = enter_all(claims);
    if (passes.size() < claims.size()) return BatchUndone{};
    BatchCommitted batch;
    {
      const std::lock_guard lock{mutex_};
      for (const Claim& claim : claims) {
        const auto taken = taken_by_another<std::variant<Found, Leased, BeyondWindow>>(claim);
        BatchItem item = Committed{};
        if (taken) item = std::monostate{};
        if (taken && std::holds_alternative<Found>(*taken)) item = std::get<Found>(*taken);
        batch.items.push_back(std::move(item));
      }
    }
    const auto ours = [](const BatchItem& item) { return std::holds_alternative<Committed>(item); };
    if (std::none_of(batch.items.begin(), batch.items.end(), ours)) return batch;
    const StateTurn turn{*this};
    Transaction tx{*this};
    try {
      std::vector<StoredValue> values = effect(tx, batch.items);
      const std::lock_guard lock{mutex_};
      auto value = values.begin();
      for (std::size_t i = 0; i < claims.size(); ++i)
        if (ours(batch.items[i])) insert(claims[i], std::move(*value++));
      publish(tx);
      return batch;
    } catch (const ConfigurationError&) {
      throw;
    } catch (...) {
      return BatchUndone{};
    }
  }

  /// See LeaseStore.
  [[nodiscard]] Acquired acquire(const Claim& claim, std::optional<Duration> lease) {
    const std::lock_guard lock{mutex_};
    if (auto taken = taken_by_another<Acquired>(claim)) return *std::move(taken);
    const Grant grant{next_token(), ++fences_};
    rows_.insert_or_assign(claim.key, Row{.found = {grant.claim, claim.fingerprint, {}},
                                          .committed = false,
                                          .ends = lease ? after(*lease) : std::nullopt,
                                          .fence = grant.fence,
                                          .generation = generation_after(claim.key)});
    return grant;
  }
  [[nodiscard]] Held extend(const Claim& claim, const Grant& grant, Duration length) {
    return with_grant(claim, grant, [&](Row& row) {
      if (row.ends) row.ends = after(length);
    });
  }
  [[nodiscard]] Held complete(const Claim& claim, const Grant& grant, const StoredValue& value) {
    const std::lock_guard lock{mutex_};
    const auto row = rows_.find(claim.key);
    if (row == rows_.end() || !holds(row->second, grant)) return Lost{};
    if (row->second.committed) return Kept{};
    row->second.committed = true;
    row->second.found.value = value;
    row->second.ends = claim.window ? after(*claim.window) : std::nullopt;
    starts_.erase(claim.key);
    return Kept{};
  }
  [[nodiscard]] Held release(const Claim& claim, const Grant& grant) {
    return with_grant(claim, grant, [&](Row& row) { row.ends = clock_(); });
  }

  /// See CountingStore.
  [[nodiscard]] Started start(const Claim& claim) {
    const std::lock_guard lock{mutex_};
    Starts& starts = starts_[claim.key];
    const ClaimToken token = starts.open.emplace_back(next_token());
    return Start{token, starts.count++};
  }
  [[nodiscard]] Held end(const Claim& claim, const Start& start, StartEnd how) {
    const std::lock_guard lock{mutex_};
    Starts& starts = starts_[claim.key];
    if (std::erase(starts.open, start.token) == 0) return Lost{};
    if (how == StartEnd::not_counted) --starts.count;
    return Kept{};
  }

 private:
  using Time = std::chrono::system_clock::time_point;

  struct Row {
    Found found;
    bool committed = true;
    std::optional<Time> ends = {};  ///< the window's end, or the lease's; nullopt: never
    std::uint64_t fence = 0;
    std::uint64_t generation = 1;  ///< how often the key was taken, ended windows included
  };

  /// Not noexcept: only then does libstdc++ keep the hashes, and looking for a key reads no neighbour's.
  struct HashKey {
    std::size_t operator()(const Key& key) const { return std::hash<Key>{}(key); }
  };

  struct Starts {
    std::uint64_t count = 0;
    std::vector<ClaimToken> open = {};  ///< of the starts that have not ended
  };

  void refuse_nested_use() const {
    if (runner_ == std::this_thread::get_id())
      throw ConfigurationError{
          "a handler on a MemoryStore called a consumer on the same store: the inner call would wait for its own caller; give the inner consumer a store of its own, or call it after the outer call returned"};
  }

  /// Holds every key, entered in one order for every caller; fewer than the claims: the wait ended first.
  [[nodiscard]] std::vector<detail::KeyGate::Pass> enter_all(std::span<const Claim> claims) {
    std::vector<const Claim*> sorted;
    for (const Claim& claim : claims) sorted.push_back(&claim);
    std::sort(sorted.begin(), sorted.end(), [](const Claim* a, const Claim* b) { return a->key < b->key; });
    const auto now = std::chrono::steady_clock::now();
    std::vector<detail::KeyGate::Pass> passes;
    passes.reserve(sorted.size());
    for (const Claim* claim : sorted) {
      const auto wait = claim->on_concurrent == Concurrent::defer ? Duration{0} : claim->wait_limit;
      auto pass = gate_.enter(claim->key, detail::saturating_add(now, wait), claim->stop);
      if (!pass) break;
      passes.push_back(*std::move(pass));
    }
    return passes;
  }

  /// A row, or the horizon, that keeps this claim from the key; under the lock.
  template <class Answer>
  [[nodiscard]] std::optional<Answer> taken_by_another(const Claim& claim) const {
    const auto row = rows_.find(claim.key);
    if (row != rows_.end() && row->second.committed && !row->second.ends) return row->second.found;
    const Time now = clock_();
    if (row != rows_.end() && (!row->second.ends || *row->second.ends > now)) {
      if (row->second.committed) return row->second.found;
      return row->second.ends ? Leased{*row->second.ends - now} : Leased{};
    }
    if (claim.window && claim.occurred_at && *claim.occurred_at < now - *claim.window) return BeyondWindow{};
    return std::nullopt;
  }

  [[nodiscard]] Applied run(const Claim& claim, Effect<Transaction>& effect) {
    const StateTurn turn{*this};
    Transaction tx{*this};
    try {
      tx.working_on(claim.key);
      StoredValue value = effect(tx);
      const std::lock_guard lock{mutex_};
      insert(claim, std::move(value));
      publish(tx);
      return Committed{};
    } catch (...) {
      return detail::handler_failure();
    }
  }

  /// Under the lock.
  void insert(const Claim& claim, StoredValue value) {
    rows_.insert_or_assign(claim.key, Row{.found = {next_token(), claim.fingerprint, std::move(value)},
                                          .ends = claim.window ? after(*claim.window) : std::nullopt,
                                          .generation = generation_after(claim.key)});
    starts_.erase(claim.key);
  }

  /// Under the lock.
  void publish(Transaction& tx) {
    outbox_.commit(std::move(tx.draft_));
    committed_ = std::move(tx.state_);
  }

  /// The generation of the row that takes this key next; under the lock.
  [[nodiscard]] std::uint64_t generation_after(const Key& key) const {
    const auto row = rows_.find(key);
    if (row == rows_.end()) return 1;
    return row->second.generation + (row->second.committed ? 1 : 0);
  }
  [[nodiscard]] std::uint64_t next_generation(const Key& key) const {
    const std::lock_guard lock{mutex_};
    return generation_after(key);
  }

  template <class Change>
  [[nodiscard]] Held with_grant(const Claim& claim, const Grant& grant, Change change) {
    const std::lock_guard lock{mutex_};
    const auto row = rows_.find(claim.key);
    if (row == rows_.end() || !holds(row->second, grant) || row->second.committed) return Lost{};
    change(row->second);
    return Kept{};
  }

  [[nodiscard]] static bool holds(const Row& row, const Grant& grant) noexcept {
    return row.found.token == grant.claim && row.fence == grant.fence;
  }

  [[nodiscard]] std::optional<Time> after(Duration span) const {
    return std::chrono::time_point_cast<Time::duration>(
        detail::saturating_add(std::chrono::time_point_cast<Duration>(clock_()), span));
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
  Clock clock_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, Row, HashKey> rows_;
  std::unordered_map<Key, Starts, HashKey> starts_;
  std::shared_ptr<const State> committed_;
  detail::MemoryOutbox outbox_;
  MemoryDeadLetters dead_letters_;
  std::uint64_t tokens_ = 0;
  std::uint64_t fences_ = 0;
};

static_assert(BatchStore<MemoryStore<>> && LeaseStore<MemoryStore<>> && CountingStore<MemoryStore<>>);

}  // namespace idem
