// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/function_ref.hpp>
#include <idem/duration.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/outcome.hpp>

namespace idem {

/// A random value of one attempt, stored in the row it claims: it tells afterwards whose commit a row is.
struct ClaimToken {
  std::array<std::byte, 16> bytes{};
  friend bool operator==(const ClaimToken&, const ClaimToken&) = default;
};

/// What the transport says of a message; a hint, never trusted for more.
enum class Delivered { first, again };

/// What a consumer asks of a store: this event, on these terms.
struct Claim {
  const Key& key;
  Fingerprint fingerprint = {};
  Concurrent on_concurrent = Concurrent::wait;
  /// How long to wait for another holder of the key, and for a connection.
  Duration wait_limit = std::chrono::seconds{5};
  /// How long the key counts from its commit; nullopt: for ever. By the store's clock.
  std::optional<Duration> window = {};
  /// When the event happened; older than the window, a key that is not there may have been forgotten.
  std::optional<std::chrono::system_clock::time_point> occurred_at = {};
  /// The token of an earlier attempt whose COMMIT is in doubt; this claim is made to find out.
  std::optional<ClaimToken> doubted = {};
  /// The transport says that it delivered the event before: a store may look for its row before it claims.
  Delivered delivered = Delivered::first;
  /// Ends waiting early.
  std::stop_token stop = {};
};

/// What a handler returned, encoded; none for void.
using StoredValue = std::optional<std::string>;

/// The effect that a store runs inside its transaction. A reference: it lives as long as the call given it.
template <class Transaction>
using Effect = detail::FunctionRef<StoredValue(Transaction&)>;

/// The key was ours, the effect ran, and the commit of both is confirmed.
struct Committed {};

/// The key is taken by a committed row.
struct Found {
  ClaimToken token = {};
  Fingerprint fingerprint = {};
  StoredValue value = {};
};

/// Another open transaction held the key for the whole wait.
struct Busy {};

/// A live lease holds the key; for so much longer, by the store's clock. nullopt: until its owner is done.
struct Leased {
  std::optional<Duration> rest = {};
};

/// The key is free, and the event older than the window in which it would have been remembered.
struct BeyondWindow {};

/// The COMMIT was sent and its answer lost: the effect may or may not be there. Claim again with `doubted =
/// token` to find out.
struct InDoubt {
  ClaimToken token = {};
  Failure failure = {};
};

/// The right to work on an event outside the store, until it ends or is taken over.
struct Grant {
  ClaimToken claim = {};
  std::uint64_t fence = 0;  ///< the fencing token: greater than every one granted before, over all keys
};

/// The lease is this owner's still; for `complete`: the effect is recorded.
struct Kept {};

/// The lease is not this owner's any more: nothing was changed.
struct Lost {};

/// One start of a handler, counted where it survives a crash.
struct Start {
  ClaimToken token = {};
  std::uint64_t before = 0;  ///< starts of the same event that were counted before
};

/// How a counted start ended, unless the effect was applied. A start that has no end is a crash.
enum class StartEnd { failed, not_counted };

/// Where a failed attempt may be tried again.
enum class Retry { in_call, by_redelivery };

/// Whose fault a failure is. Only a fault of the message can end in `rejected`.
enum class Fault { message, store };

/// Nothing was stored, as far as the store can tell.
struct Failed {
  Failure failure = {};
  Fault fault = Fault::message;
  Retry retry = Retry::in_call;
  std::optional<Duration> retry_after = {};
  /// Of the attempt, once its key was claimed. Found later in a committed row, it says that the handler committed.
  std::optional<ClaimToken> token = {};
};

using Started = std::variant<Start, Failed>;

/// What one `apply` did.
using Applied = std::variant<Committed, Found, Busy, Leased, BeyondWindow, InDoubt, Failed>;

/// What an `acquire` met.
using Acquired = std::variant<Grant, Found, Leased, BeyondWindow, InDoubt, Failed>;

/// What a later verb of a lease did. `Failed`: the store could not be asked, and the verb may be repeated.
using Held = std::variant<Kept, Lost, Failed>;

/// What a batch found of one of its claims: `Committed` is ours; nothing: it is decided by itself, later.
using BatchItem = std::variant<std::monostate, Committed, Found>;

/// The effects of a batch: runs what is ours, in the order of the claims, and returns a value for each of
/// those.
template <class Transaction>
using BatchEffect = detail::FunctionRef<std::vector<StoredValue>(Transaction&, std::span<const BatchItem>)>;

/// The batch is committed: each claim as the effect was told.
struct BatchCommitted {
  std::vector<BatchItem> items = {};
};

/// The COMMIT of a batch was sent and its answer lost; a token for each claim that was ours.
struct BatchInDoubt {
  std::vector<std::optional<ClaimToken>> tokens = {};
  Failure failure = {};
};

/// Nothing of the batch is stored, as far as the store can tell: its events are handled one by one. A token for each
/// claim that was ours; see `Failed::token`.
struct BatchUndone {
  std::vector<std::optional<ClaimToken>> tokens = {};
};

using BatchApplied = std::variant<BatchCommitted, BatchInDoubt, BatchUndone>;

/// A store whose own transaction holds both the key and the handler's effect.
///
/// * `apply(claim, effect)` inserts the key and runs the effect in one transaction, and commits both or none.
/// * A concurrent claim of the same key waits (at most `wait_limit`, not at all with `Concurrent::defer`) and
///   takes over if the holder rolls back: `Busy` when the wait ends first.
/// * A key that a committed row holds is `Found`, with that row's token, fingerprint and value; the effect is
///   not run and nothing is written.
/// * The effect is run at most once, in a transaction that no earlier attempt touched; whatever it throws
///   rolls the transaction back and is answered as `Failed`, but for ConfigurationError, which is let out.
/// * `Committed` is answered only for a confirmed commit; a commit whose answer is lost is `InDoubt`.
/// * What says that the set-up is wrong, not the message, is thrown as ConfigurationError.
/// * It may be called from many threads at once.
template <class S>
concept TransactionalStore = requires(S& store, const Claim& claim, Effect<typename S::Transaction> effect) {
  { store.apply(claim, effect) } -> std::same_as<Applied>;
};

/// A store that can be told an effect instead of running it, and so claims, does and commits in one message.
///
/// * `apply_at_once(claim, statements)` is `apply` with an effect that runs the statements, in fewer round
///   trips. nullopt: nothing was stored, and the store wants to be asked the usual way, where every case has its
///   own answer.
/// * `Failed` carries a token if, and only if, the statements were run.
/// * `run_statements(transaction, statements)`, found beside the transaction's type, runs them in a transaction.
template <class S>
concept StatementStore = TransactionalStore<S> &&
    requires(S& store, const Claim& claim, const typename S::Statements& statements,
             typename S::Transaction& tx) {
  { store.apply_at_once(claim, statements) } -> std::same_as<std::optional<Applied>>;
  run_statements(tx, statements);
};

/// A store that can claim many keys at once, and commit their effects in one transaction.
///
/// * `apply_batch(claims, effect)` inserts the free keys in one order that is the same for every caller,
///   whatever the order of the claims, and runs the effect if any is ours. No two claims of a batch have the
///   same key.
/// * Its waiting for others is bounded by `wait_limit` in all. A claim it could not decide is left undecided.
/// * What the effect throws undoes the batch, but for ConfigurationError, which is let out.
/// * A transaction that has `working_on(const Key&)` and `working_on(std::span<const Key* const>)` is told before each
///   handler for which event it works; the latter for a bulk handler, in `apply` as well.
template <class S>
concept BatchStore = TransactionalStore<S> &&
    requires(S& store, std::span<const Claim> claims, BatchEffect<typename S::Transaction> effect) {
  { store.apply_batch(claims, effect) } -> std::same_as<BatchApplied>;
};

/// A store that lends an event to one owner at a time, for effects outside of it.
///
/// * `acquire(claim, lease)` takes a free key, or one whose lease or window has ended, for `lease` from now
///   by the store's clock (nullopt: never taken over), with a new fencing token, and commits that; it does
///   not wait for another owner (`Leased`). Where the answer is lost it is `InDoubt`: acquire again with
///   `doubted = token`.
/// * `extend(claim, grant, length)` moves the lease's end to `length` from now, by the store's clock.
/// * `complete(claim, grant, value)` records the effect: from then on the key is `Found`, for the claim's
///   window.
/// * `release(claim, grant)` ends the lease now.
/// * The last three change nothing and answer `Lost` unless the row still holds this grant and no effect.
///   They may be repeated: a second `complete` of one grant is `Kept`.
/// * What says that the set-up is wrong, not the message, is thrown as ConfigurationError.
/// * They may be called from many threads at once.
template <class S>
concept LeaseStore = requires(S& store, const Claim& claim, const Grant& grant, std::optional<Duration> lease,
                              Duration length, const StoredValue& value) {
  { store.acquire(claim, lease) } -> std::same_as<Acquired>;
  { store.extend(claim, grant, length) } -> std::same_as<Held>;
  { store.complete(claim, grant, value) } -> std::same_as<Held>;
  { store.release(claim, grant) } -> std::same_as<Held>;
};

/// A store that counts how often the handler of an event was started, for `Attempts::counted_by_store`.
///
/// * `start(claim)` counts one more start and commits that before it answers, apart from the effect's
///   transaction.
/// * `end(claim, start, how)` tells a failure from a crash, or takes the start back: an outage counts as
///   neither.
/// * Both may be repeated when their answer is lost; the same start is counted, and ended, once.
template <class S>
concept CountingStore = requires(S& store, const Claim& claim, const Start& start, StartEnd how) {
  { store.start(claim) } -> std::same_as<Started>;
  { store.end(claim, start, how) } -> std::same_as<Held>;
};

}  // namespace idem
