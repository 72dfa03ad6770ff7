// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/store.hpp>
#include <idem/testing/conformance/check.hpp>
#include <idem/testing/conformance/transactions.hpp>

namespace idem::testing {

/// What BatchStore asks for, one check a sentence.
template <class Bench>
[[nodiscard]] std::vector<StoreCheck<Bench>> batch_checks() {
  using Transaction = typename Bench::Store::Transaction;
  using Items = std::span<const BatchItem>;
  std::vector<StoreCheck<Bench>> checks;
  const auto add = [&](std::string sentence, auto show) { checks.push_back({std::move(sentence), show}); };

  add("a batch commits what is free, and finds what is taken", [](Bench& bench, Findings& f) {
    const std::vector<Key> keys{{"shop", "book.v1", "c"}, {"shop", "book.v1", "a"}, {"shop", "book.v1", "b"}};
    static_cast<void>(
        apply_sum(bench, {.key = keys[1], .fingerprint = fingerprint_of("first")}, 1, "stored"));
    const std::vector<Claim> claims{{.key = keys[0]}, {.key = keys[1]}, {.key = keys[2]}};
    std::string met;
    const auto effect = [&](Transaction& tx, Items items) {
      std::vector<StoredValue> values;
      for (const BatchItem& item : items) {
        met += std::holds_alternative<Committed>(item) ? 'c'
               : std::holds_alternative<Found>(item)   ? 'f'
                                                       : '-';
        if (!std::holds_alternative<Committed>(item)) continue;
        bench.write(tx, 10);
        values.emplace_back(std::to_string(met.size()));
      }
      return values;
    };
    const BatchApplied applied = bench.store.apply_batch(claims, effect);
    f.expect(met == "cfc", "the effect is told which are ours, in the order of the claims");
    f.expect_answer<BatchCommitted>(applied, "it is BatchCommitted");
    f.expect(bench.sum() == 21, "the effects of the free ones are there");
    for (const auto& [place, value] : {std::pair{0, "1"}, std::pair{1, "stored"}, std::pair{2, "3"}}) {
      const Applied again = apply_sum(bench, {.key = keys[static_cast<std::size_t>(place)]});
      const auto* found = std::get_if<Found>(&again);
      f.expect(found != nullptr && found->value == StoredValue{value}, "each key has its own value");
    }
  });
  add("what the effect of a batch throws undoes all of it", [](Bench& bench, Findings& f) {
    const std::vector<Key> keys{{"shop", "book.v1", "a"}, {"shop", "book.v1", "b"}};
    const std::vector<Claim> claims{{.key = keys[0]}, {.key = keys[1]}};
    const auto effect = [&](Transaction& tx, Items) -> std::vector<StoredValue> {
      bench.write(tx, 10);
      throw TransientError{"down"};
    };
    f.expect_answer<BatchUndone>(bench.store.apply_batch(claims, effect), "it is BatchUndone");
    f.expect(bench.sum() == 0, "no effect is there");
    for (const Key& k : keys) f.expect_answer<Committed>(apply_sum(bench, {.key = k}), "each key is free");
  });
  add("a ConfigurationError of a batch is let out", [](Bench& bench, Findings& f) {
    const std::vector<Key> keys{{"shop", "book.v1", "a"}};
    const std::vector<Claim> claims{{.key = keys[0]}};
    const auto effect = [](Transaction&, Items) -> std::vector<StoredValue> {
      throw ConfigurationError{"wrong"};
    };
    bool thrown = false;
    try {
      static_cast<void>(bench.store.apply_batch(claims, effect));
    } catch (const ConfigurationError&) {
      thrown = true;
    }
    f.expect(thrown, "it is let out");
    f.expect_answer<Committed>(apply_sum(bench, {.key = keys[0]}), "the key is free");
  });
  add("the effect of a batch none of which is ours is not run", [](Bench& bench, Findings& f) {
    const std::vector<Key> keys{{"shop", "book.v1", "a"}};
    const std::vector<Claim> claims{{.key = keys[0]}};
    static_cast<void>(apply_sum(bench, claims[0]));
    bool ran = false;
    const auto effect = [&](Transaction&, Items items) {
      ran = true;
      return std::vector<StoredValue>(items.size());
    };
    static_cast<void>(bench.store.apply_batch(claims, effect));
    f.expect(!ran, "it is not run");
  });
  return checks;
}

/// What CountingStore asks for, one check a sentence.
template <class Bench>
[[nodiscard]] std::vector<StoreCheck<Bench>> counting_checks() {
  std::vector<StoreCheck<Bench>> checks;
  const auto add = [&](std::string sentence, auto show) { checks.push_back({std::move(sentence), show}); };
  static constexpr auto before = [](Bench& bench, const Key& key) {
    const Started met = bench.store.start({.key = key});
    const auto* start = std::get_if<Start>(&met);
    return start == nullptr ? ~std::uint64_t{0} : start->before;
  };

  add("each start tells how many were counted before, of its own event", [](Bench& bench, Findings& f) {
    const Key a{"shop", "book.v1", "a"};
    const Key b{"shop", "book.v1", "b"};
    f.expect(before(bench, a) == 0 && before(bench, a) == 1 && before(bench, a) == 2, "they are counted");
    f.expect(before(bench, b) == 0, "another event's are not");
  });
  add("a start that failed is counted, one that is taken back is not, and only once",
      [](Bench& bench, Findings& f) {
        const Key k{"shop", "book.v1", "a"};
        const Claim claim{.key = k};
        const Started one = bench.store.start(claim);
        const Started two = bench.store.start(claim);
        if (!std::holds_alternative<Start>(one) || !std::holds_alternative<Start>(two))
          return f.expect(false, "both are started");
        f.expect_answer<Kept>(bench.store.end(claim, std::get<Start>(one), StartEnd::failed), "it ends");
        f.expect_answer<Kept>(bench.store.end(claim, std::get<Start>(two), StartEnd::not_counted), "it ends");
        static_cast<void>(bench.store.end(claim, std::get<Start>(two), StartEnd::not_counted));
        static_cast<void>(bench.store.end(claim, std::get<Start>(one), StartEnd::not_counted));
        f.expect(before(bench, k) == 1, "the failed one is counted");
      });
  return checks;
}

}  // namespace idem::testing
