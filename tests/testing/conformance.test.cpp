// SPDX-License-Identifier: MIT
#include <idem/testing/conformance.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"
#include "testing/contract.hpp"

namespace idem::tests::contract {

namespace example {
#include "../examples/own_store.cpp"  // all it includes is included above
}

namespace {

struct Ledger {
  std::int64_t sum = 0;
};

/// A bench on a store in memory, or on one made from it.
template <class S>
struct Bench {
  using Store = S;
  testing::ManualClock clock{};
  Store store{Ledger{}, clock.store_clock()};

  void write(typename Store::Transaction& tx, std::int64_t n) const { tx.state().sum += n; }
  [[nodiscard]] std::int64_t seen(typename Store::Transaction& tx) const { return tx.state().sum; }
  [[nodiscard]] std::int64_t sum() const { return store.state().sum; }
  void advance(Duration span) { clock.advance(span); }
};
static_assert(testing::StoreBench<Bench<MemoryStore<Ledger>>>);

struct WritesNothing {
  using Store = MemoryStore<Ledger>;
  Store& store;
};
static_assert(!testing::StoreBench<WritesNothing>);

struct OwnBench {
  using Store = example::OwnStore;
  Store store{};
};
static_assert(testing::StoreBench<OwnBench> && !testing::MovesTime<OwnBench>);

/// Stores that break their promise in one place each.
struct ReleasesForAnybody : MemoryStore<Ledger> {
  using MemoryStore<Ledger>::MemoryStore;
  Held release(const Claim& claim, const Grant& grant) {
    last_ = std::max(last_, grant.fence);
    for (std::uint64_t fence = 1; fence <= last_ + 1; ++fence)
      for (std::uint64_t token = 1; token <= fence + 8; ++token) {
        Grant any{.claim = {}, .fence = fence};
        std::memcpy(any.claim.bytes.data(), &token, sizeof token);
        static_cast<void>(MemoryStore<Ledger>::release(claim, any));
      }
    return Kept{};
  }
  std::uint64_t last_ = 0;
};
struct AddsToTheOldEnd : MemoryStore<Ledger> {
  using MemoryStore<Ledger>::MemoryStore;
  Held extend(const Claim& claim, const Grant& grant, Duration length) {
    return MemoryStore<Ledger>::extend(claim, grant, length + std::chrono::seconds{10});
  }
};
struct RunsEffectsOfTakenKeys : MemoryStore<Ledger> {
  using MemoryStore<Ledger>::MemoryStore;
  Applied apply(const Claim& claim, Effect<Transaction> effect) {
    Applied met = MemoryStore<Ledger>::apply(claim, effect);
    const Key other{"other", claim.key.consumer(), claim.key.event_id()};
    if (std::holds_alternative<Found>(met))
      static_cast<void>(MemoryStore<Ledger>::apply({.key = other}, effect));
    return met;
  }
};

bool tells(const std::vector<std::string>& failed, const std::string& sentence) {
  return std::any_of(failed.begin(), failed.end(),
                     [&](const std::string& line) { return line.find(sentence) != std::string::npos; });
}

}  // namespace

TEST_CASE("a MemoryStore keeps the contract of a store", "[testing]") {
  show_contract([] { return Bench<MemoryStore<Ledger>>{}; });
  CHECK(testing::store_checks<Bench<MemoryStore<Ledger>>>().size() >= 35);
}

TEST_CASE("the store of the example keeps the contract of a store", "[testing]") {
  show_contract([] { return OwnBench{}; });
  CHECK(testing::store_checks<OwnBench>().size() >= 10);
}

TEST_CASE("a store that breaks the contract is told which sentence it breaks", "[testing]") {
  CHECK(tells(testing::store_failures([] { return Bench<ReleasesForAnybody>{}; }),
              "the successor's is not touched: not so: "));
  CHECK(tells(testing::store_failures([] { return Bench<AddsToTheOldEnd>{}; }),
              "extend moves the end to so long from now, not from the old end: not so: and not longer"));
  CHECK(tells(testing::store_failures([] { return Bench<RunsEffectsOfTakenKeys>{}; }),
              "its effect is not run: not so: the effect is not run"));
  CHECK(testing::store_failures([] { return Bench<MemoryStore<Ledger>>{}; }).empty());
}

}  // namespace idem::tests::contract
