// SPDX-License-Identifier: MIT
#pragma once

// A database as the simulation needs it: any number of transactions are open at
// once on one thread, and a COMMIT may still run on the server when its
// connection is gone.
//
// A claim waits for the open transaction that holds its key. If that one
// belongs to a call further down the stack, it cannot end first: the wait ends
// at its limit. If it is a COMMIT without a connection, the scheduler lets it
// end, or makes the wait longer than the limit.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/handler_failure.hpp>
#include <idem/error.hpp>
#include <idem/store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/scheduler.hpp>

namespace idem::tests::simulation {

/// A message that waits in the outbox. `seq`: the order in which they were
/// inserted, committed or not.
struct OutboxRow {
  std::uint64_t seq = 0;
  std::size_t event = 0;
  std::size_t lane = 0;
  std::chrono::system_clock::time_point claimed_until = {};
  int claimed_by = -1;
  bool sent = false;
  bool published = false;  ///< what the receivers know, and no relay
};

struct Effect {
  std::size_t event = 0;
  std::uint64_t call = 0;  ///< whose it is
};

/// What the handlers write, and what the simulation may look at.
struct Tables {
  std::vector<Effect> effects = {};
  std::vector<OutboxRow> outbox = {};
};

class Database {
 public:
  using Time = std::chrono::system_clock::time_point;

  Database(testing::Scheduler& scheduler, testing::ManualClock& clock)
      : scheduler_{scheduler}, clock_{clock} {}
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// Of one claim; what it wrote is seen when it commits.
  struct Work {
    Key key;
    ClaimToken token;
    Fingerprint fingerprint;
    std::uint64_t call;
    Tables writes = {};
  };

  struct Row {
    ClaimToken token = {};
    Fingerprint fingerprint = {};
    StoredValue value = {};
    bool done = false;
    std::optional<Time> lease_ends = {};
    std::uint64_t fence = 0;
  };

  [[nodiscard]] const Tables& tables() const noexcept { return tables_; }
  [[nodiscard]] Tables& tables() noexcept { return tables_; }
  [[nodiscard]] Time now() const { return clock_.store_now(); }
  [[nodiscard]] testing::Scheduler& scheduler() noexcept { return scheduler_; }

  [[nodiscard]] const Row* row(const Key& key) const {
    const auto place = rows_.find(key);
    return place == rows_.end() ? nullptr : &place->second;
  }
  [[nodiscard]] Row& row_to_write(const Key& key) { return rows_[key]; }

  [[nodiscard]] ClaimToken next_token() noexcept {
    ClaimToken token;
    const std::uint64_t number = ++tokens_;
    std::memcpy(token.bytes.data(), &number, sizeof number);
    return token;
  }
  [[nodiscard]] std::uint64_t next_fence() noexcept { return ++fences_; }
  [[nodiscard]] std::uint64_t next_seq() noexcept { return ++seqs_; }

  void open(const Work& work) { open_.push_back(&work); }
  void close(const Work& work) { open_.erase(std::find(open_.begin(), open_.end(), &work)); }
  /// A transaction of a call that is at work.
  [[nodiscard]] bool held(const Key& key) const {
    return std::any_of(open_.begin(), open_.end(), [&](const Work* work) { return work->key == key; });
  }

  void commit(Work&& work) {
    Row& row = rows_[work.key];
    row = {.token = work.token, .fingerprint = work.fingerprint, .done = true};
    for (const Effect& effect : work.writes.effects) tables_.effects.push_back(effect);
    for (const OutboxRow& message : work.writes.outbox) tables_.outbox.push_back(message);
  }

  /// The server goes on with a COMMIT whose connection is gone.
  void leave_running(Work&& work) { running_.push_back(std::move(work)); }
  [[nodiscard]] bool any_running() const noexcept { return !running_.empty(); }
  [[nodiscard]] bool running(const Key& key) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Work& work) { return work.key == key; });
  }
  [[nodiscard]] bool running_of(std::uint64_t call) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Work& work) { return work.call == call; });
  }
  /// It ends: that one, or the one of this key.
  void end_running(const Key* key = nullptr) {
    std::size_t i = key == nullptr ? scheduler_.pick(running_.size()) : 0;
    while (key != nullptr && running_[i].key != *key) ++i;
    Work work = std::move(running_[i]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    const bool commits = scheduler_.chance(50);
    scheduler_.tell(work.key.event_id(), [&] {
      return "    the server ends the COMMIT of call " + std::to_string(work.call) +
             ", which had lost its connection: " + (commits ? "committed" : "rolled back");
    });
    if (commits) commit(std::move(work));
  }

  void wait(Duration span) { clock_.advance(span); }

 private:
  testing::Scheduler& scheduler_;
  testing::ManualClock& clock_;
  Tables tables_ = {};
  std::unordered_map<Key, Row> rows_ = {};
  std::vector<const Work*> open_ = {};
  std::vector<Work> running_ = {};
  std::uint64_t tokens_ = 0;
  std::uint64_t fences_ = 0;
  std::uint64_t seqs_ = 0;
};

/// What a handler writes through.
class Transaction {
 public:
  Transaction(Database& database, Database::Work& work) : database_{database}, work_{work} {}
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void add_effect(std::size_t event) { work_.writes.effects.push_back({event, work_.call}); }
  void enqueue(std::size_t event, std::size_t lane) {
    work_.writes.outbox.push_back({.seq = database_.next_seq(), .event = event, .lane = lane});
  }

 private:
  Database& database_;
  Database::Work& work_;
};

/// One worker's connection to the database. The rules are those of PostgreSQL
/// and of the statements sent to it.
class Connection {
 public:
  using Transaction = simulation::Transaction;

  /// `loses`: whether the COMMIT that is sent now loses its connection.
  Connection(Database& database, std::function<bool()> loses)
      : database_{database}, loses_{std::move(loses)} {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Of which call what comes next is.
  void begin_call(std::uint64_t call) noexcept { call_ = call; }

  [[nodiscard]] Applied apply(const Claim& claim, idem::Effect<Transaction> effect) {
    while (true) {
      const Database::Row* row = database_.row(claim.key);
      if (row != nullptr && row->done) return Found{row->token, row->fingerprint, row->value};
      if (database_.running(claim.key)) {
        if (claim.on_concurrent == Concurrent::defer) return Busy{};
        if (database_.scheduler().chance(40)) {
          database_.wait(claim.wait_limit);
          return Busy{};
        }
        database_.end_running(&claim.key);
        continue;
      }
      if (!database_.held(claim.key)) break;
      if (claim.on_concurrent == Concurrent::wait) database_.wait(claim.wait_limit);
      return Busy{};
    }
    Database::Work work{claim.key, database_.next_token(), claim.fingerprint, call_};
    try {
      const Open open{database_, work};
      Transaction tx{database_, work};
      const StoredValue value = effect(tx);
      static_cast<void>(value);  // the consumers of the simulation return nothing
    } catch (...) {
      return idem::detail::handler_failure();
    }
    if (loses_()) {
      const ClaimToken token = work.token;
      database_.leave_running(std::move(work));
      return InDoubt{token, {ErrorClass::in_doubt, "08006", "the connection was lost during COMMIT"}};
    }
    database_.commit(std::move(work));
    return Committed{};
  }

  [[nodiscard]] Acquired acquire(const Claim& claim, std::optional<Duration> lease) {
    const Database::Row* row = database_.row(claim.key);
    if (row != nullptr && row->done) return Found{row->token, row->fingerprint, row->value};
    if (row != nullptr && (!row->lease_ends || *row->lease_ends > now())) {
      if (claim.doubted && row->token == *claim.doubted) return Grant{row->token, row->fence};
      return row->lease_ends ? Leased{*row->lease_ends - now()} : Leased{};
    }
    const Grant grant{database_.next_token(), database_.next_fence()};
    Database::Row& taken = database_.row_to_write(claim.key);
    taken = {.token = grant.claim, .fingerprint = claim.fingerprint, .fence = grant.fence};
    if (lease) taken.lease_ends = now() + *lease;
    return grant;
  }
  [[nodiscard]] Held extend(const Claim& claim, const Grant& grant, Duration length) {
    Database::Row* row = held_row(claim.key, grant);
    if (row == nullptr || row->done) return Lost{};
    if (row->lease_ends) row->lease_ends = now() + length;
    return Kept{};
  }
  [[nodiscard]] Held complete(const Claim& claim, const Grant& grant, const StoredValue& value) {
    Database::Row* row = held_row(claim.key, grant);
    if (row == nullptr) return Lost{};
    row->done = true;
    row->value = value;
    return Kept{};
  }
  [[nodiscard]] Held release(const Claim& claim, const Grant& grant) {
    Database::Row* row = held_row(claim.key, grant);
    if (row == nullptr || row->done) return Lost{};
    row->lease_ends = now();
    return Kept{};
  }

 private:
  class Open {
   public:
    Open(Database& database, const Database::Work& work) : database_{database}, work_{work} {
      database_.open(work_);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() { database_.close(work_); }

   private:
    Database& database_;
    const Database::Work& work_;
  };

  [[nodiscard]] Database::Time now() const { return database_.now(); }

  [[nodiscard]] Database::Row* held_row(const Key& key, const Grant& grant) {
    const Database::Row* row = database_.row(key);
    if (row == nullptr || row->token != grant.claim || row->fence != grant.fence) return nullptr;
    return &database_.row_to_write(key);
  }

  Database& database_;
  std::function<bool()> loses_;
  std::uint64_t call_ = 0;
};

static_assert(TransactionalStore<Connection> && LeaseStore<Connection>);

}  // namespace idem::tests::simulation
