// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <idem/error.hpp>
#include <idem/outcome.hpp>
#include <idem/retry/sample.hpp>
#include <idem/store.hpp>

namespace idem::detail {

struct NotTransactional {};

template <class S>
struct FaultyTransaction {
  using type = NotTransactional;
};
template <TransactionalStore S>
struct FaultyTransaction<S> {
  using type = typename S::Transaction;
};

/// Thrown through the inner store: its transaction rolls back.
struct FaultyUndo {};

}  // namespace idem::detail

namespace idem::testing {

/// Ends a call where a process would have died: nothing of the call goes on, and nothing is answered.
///
/// A ConfigurationError, because that is the one exception that stores and consumers let through.
class Crash : public ConfigurationError {
 public:
  Crash() : ConfigurationError{"the process was made to crash here"} {}
};

/// What a store is asked for.
enum class Verb { apply, apply_batch, acquire, extend, complete, release, start, end };

/// What goes wrong with one verb.
enum class Mishap {
  none,
  unreachable,  ///< the store is not asked: `Failed`, its own fault; an `apply_batch` is `BatchUndone`
  busy,         ///< `Busy` where the verb can say so, else as `unreachable`
  request_lost,  ///< the effect runs and is rolled back, the rest is not done: `InDoubt` where it can be, else `Failed`
  answer_lost,   ///< it is done, and answered like `request_lost`
  crash_before,  ///< the process dies before the store is asked
  crash_inside,  ///< it dies between the effect and the COMMIT; for verbs without an effect as `crash_before`
  crash_after    ///< it dies after all is done
};

/// Says what goes wrong with the verb that is asked for now.
using Mishaps = std::function<Mishap(Verb)>;

/// One mishap for each use of `verb`, in this order; all else goes well.
[[nodiscard]] inline Mishaps planned(Verb verb, std::vector<Mishap> mishaps) {
  return [verb, mishaps = std::move(mishaps), next = std::size_t{0}](Verb asked) mutable {
    return asked == verb && next < mishaps.size() ? mishaps[next++] : Mishap::none;
  };
}

/// Any mishap, in so many of a hundred uses of any verb.
[[nodiscard]] inline Mishaps seeded(std::uint64_t seed, std::uint32_t percent) {
  return [engine = SplitMix64{seed}, percent](Verb) mutable {
    if (detail::multiply(engine(), 100).high >= percent) return Mishap::none;
    return static_cast<Mishap>(1 + detail::multiply(engine(), 7).high);
  };
}

/// A store in front of another that has mishaps, for tests of consumers, handlers and stores.
///
/// It models TransactionalStore, BatchStore, LeaseStore and CountingStore, as far as the inner store does, and never
/// StatementStore. After a crash every verb crashes until `restart`: a dead process asks for nothing. One object stands
/// for one process.
///
/// The mishaps are those of a connection before and after the inner store's own work; a COMMIT that is still running
/// while the next claim is made is not among them.
///
/// Thread safety: as the inner store; the mishaps are drawn under a lock.
template <class Store>
class FaultyStore {
  using Undo = detail::FaultyUndo;

 public:
  using Transaction = typename detail::FaultyTransaction<Store>::type;

  /// The inner store outlives it.
  FaultyStore(Store& inner, Mishaps mishaps) : inner_{inner}, mishaps_{std::move(mishaps)} {}
  FaultyStore(const FaultyStore&) = delete;
  FaultyStore& operator=(const FaultyStore&) = delete;

  /// Dies now: for a handler that is to crash.
  [[noreturn]] void crash() {
    {
      const std::lock_guard lock{mutex_};
      dead_ = true;
    }
    throw Crash{};
  }
  void restart() {
    const std::lock_guard lock{mutex_};
    dead_ = false;
  }

  [[nodiscard]] Applied apply(const Claim& claim,
                              Effect<Transaction> effect) requires TransactionalStore<Store> {
    const Mishap mishap = next(Verb::apply);
    if (mishap == Mishap::unreachable) return unreachable();
    if (mishap == Mishap::busy) return Busy{};
    bool ran = false;
    const auto watched = [&](Transaction& tx) -> StoredValue {
      StoredValue value = effect(tx);
      ran = true;
      if (mishap == Mishap::crash_inside) crash();
      if (mishap == Mishap::request_lost) throw Undo{};
      return value;
    };
    Applied met = inner_.apply(claim, watched);
    if (mishap == Mishap::request_lost && ran) return InDoubt{made_up_token(), lost_connection()};
    if (std::holds_alternative<Committed>(met)) {
      if (mishap == Mishap::crash_after) crash();
      if (mishap == Mishap::answer_lost) return InDoubt{token_of(claim), lost_connection()};
    }
    return met;
  }

  [[nodiscard]] BatchApplied apply_batch(std::span<const Claim> claims,
                                         BatchEffect<Transaction> effect) requires BatchStore<Store> {
    const Mishap mishap = next(Verb::apply_batch);
    if (mishap == Mishap::unreachable || mishap == Mishap::busy)
      return BatchUndone{std::vector<std::optional<ClaimToken>>(claims.size())};
    std::optional<std::vector<std::optional<ClaimToken>>> ours;
    const auto watched = [&](Transaction& tx, std::span<const BatchItem> items) -> std::vector<StoredValue> {
      std::vector<StoredValue> values = effect(tx, items);
      ours.emplace(items.size());
      for (std::size_t i = 0; i < items.size(); ++i)
        if (std::holds_alternative<Committed>(items[i])) (*ours)[i] = made_up_token();
      if (mishap == Mishap::crash_inside) crash();
      if (mishap == Mishap::request_lost) throw Undo{};
      return values;
    };
    BatchApplied met = inner_.apply_batch(claims, watched);
    if (mishap == Mishap::request_lost && ours) return BatchInDoubt{*std::move(ours), lost_connection()};
    if (ours && std::holds_alternative<BatchCommitted>(met)) {
      if (mishap == Mishap::crash_after) crash();
      if (mishap == Mishap::answer_lost) {
        for (std::size_t i = 0; i < claims.size(); ++i)
          if ((*ours)[i]) (*ours)[i] = token_of(claims[i]);
        return BatchInDoubt{*std::move(ours), lost_connection()};
      }
    }
    return met;
  }

  [[nodiscard]] Acquired acquire(const Claim& claim,
                                 std::optional<Duration> lease) requires LeaseStore<Store> {
    const Mishap mishap = next(Verb::acquire);
    if (mishap == Mishap::crash_inside) crash();
    if (mishap == Mishap::unreachable || mishap == Mishap::busy) return unreachable();
    if (mishap == Mishap::request_lost)
      return InDoubt{claim.doubted ? *claim.doubted : made_up_token(), lost_connection()};
    Acquired met = inner_.acquire(claim, lease);
    if (claim.doubted && std::holds_alternative<Leased>(met)) met = found_again(claim, lease, std::move(met));
    if (const auto* grant = std::get_if<Grant>(&met)) {
      if (mishap == Mishap::crash_after) crash();
      if (mishap == Mishap::answer_lost) {
        remember(*grant);
        return InDoubt{grant->claim, lost_connection()};
      }
    }
    return met;
  }
  [[nodiscard]] Held extend(const Claim& claim, const Grant& grant,
                            Duration length) requires LeaseStore<Store> {
    return held(Verb::extend, [&] { return inner_.extend(claim, grant, length); });
  }
  [[nodiscard]] Held complete(const Claim& claim, const Grant& grant,
                              const StoredValue& value) requires LeaseStore<Store> {
    return held(Verb::complete, [&] { return inner_.complete(claim, grant, value); });
  }
  [[nodiscard]] Held release(const Claim& claim, const Grant& grant) requires LeaseStore<Store> {
    return held(Verb::release, [&] { return inner_.release(claim, grant); });
  }

  [[nodiscard]] Started start(const Claim& claim) requires CountingStore<Store> {
    const Mishap mishap = next(Verb::start);
    if (mishap == Mishap::crash_inside) crash();
    if (mishap == Mishap::unreachable || mishap == Mishap::busy || mishap == Mishap::request_lost)
      return unreachable();
    Started met = inner_.start(claim);
    if (mishap == Mishap::crash_after) crash();
    if (mishap == Mishap::answer_lost) return unreachable();
    return met;
  }
  [[nodiscard]] Held end(const Claim& claim, const Start& start, StartEnd how) requires CountingStore<Store> {
    return held(Verb::end, [&] { return inner_.end(claim, start, how); });
  }

 private:
  [[nodiscard]] static Failure lost_connection() {
    return {ErrorClass::in_doubt, "08006", "the connection was made to fail"};
  }
  [[nodiscard]] static Failed unreachable() {
    return {.failure = {ErrorClass::reconnect, "08006", "the connection was made to fail"},
            .fault = Fault::store};
  }

  [[nodiscard]] Mishap next(Verb verb) {
    const std::lock_guard lock{mutex_};
    if (dead_) throw Crash{};
    const Mishap mishap = mishaps_ ? mishaps_(verb) : Mishap::none;
    dead_ = mishap == Mishap::crash_before;
    if (dead_) throw Crash{};
    return mishap;
  }

  template <class Ask>
  [[nodiscard]] Held held(Verb verb, Ask ask) {
    const Mishap mishap = next(verb);
    if (mishap == Mishap::crash_inside) crash();
    if (mishap == Mishap::unreachable || mishap == Mishap::busy || mishap == Mishap::request_lost)
      return unreachable();
    Held met = ask();
    if (mishap == Mishap::crash_after) crash();
    if (mishap == Mishap::answer_lost) return unreachable();
    return met;
  }

  /// One that no row has.
  [[nodiscard]] ClaimToken made_up_token() {
    const std::lock_guard lock{mutex_};
    ClaimToken token;
    token.bytes.fill(std::byte{0xF7});
    const std::uint64_t number = ++made_up_;
    std::memcpy(token.bytes.data(), &number, sizeof number);
    return token;
  }

  /// Of the row that holds the key now: only the row tells it.
  [[nodiscard]] ClaimToken token_of(const Claim& claim) {
    Claim look{.key = claim.key};
    const auto never = [](Transaction&) -> StoredValue { throw Undo{}; };
    const Applied met = inner_.apply(look, never);
    const auto* found = std::get_if<Found>(&met);
    return found != nullptr ? found->token : made_up_token();
  }

  void remember(const Grant& grant) {
    const std::lock_guard lock{mutex_};
    unheard_.push_back(grant);
  }

  /// A grant whose answer was lost, if it is held still: a store need not look for it, where no answer of its own is
  /// ever lost.
  [[nodiscard]] Acquired found_again(const Claim& claim, std::optional<Duration> lease, Acquired met) {
    std::optional<Grant> grant;
    {
      const std::lock_guard lock{mutex_};
      const auto place = std::find_if(unheard_.rbegin(), unheard_.rend(),
                                      [&](const Grant& g) { return g.claim == *claim.doubted; });
      if (place != unheard_.rend()) grant = *place;
    }
    // Where it never ends, any length leaves it as it is.
    const Duration length = lease.value_or(std::chrono::hours{1});
    if (grant && std::holds_alternative<Kept>(inner_.extend(claim, *grant, length))) return *grant;
    return met;
  }

  Store& inner_;
  std::mutex mutex_;
  Mishaps mishaps_;
  bool dead_ = false;
  std::uint64_t made_up_ = 0;
  std::vector<Grant> unheard_ = {};
};

}  // namespace idem::testing
