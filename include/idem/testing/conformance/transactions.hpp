// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/store.hpp>
#include <idem/testing/conformance/check.hpp>

namespace idem::testing {

/// Asks a store for `claim` with an effect that adds `n` to the sum, and returns `value`.
template <class Bench>
[[nodiscard]] Applied apply_sum(Bench& bench, const Claim& claim, std::int64_t n = 1,
                                StoredValue value = {}) {
  const auto effect = [&](typename Bench::Store::Transaction& tx) -> StoredValue {
    bench.write(tx, n);
    return value;
  };
  return bench.store.apply(claim, effect);
}

/// The same, with an effect that throws when it has written.
template <class Bench, class Error>
[[nodiscard]] Applied apply_throwing(Bench& bench, const Claim& claim, const Error& error) {
  const auto effect = [&](typename Bench::Store::Transaction& tx) -> StoredValue {
    bench.write(tx, 100);
    throw error;
  };
  return bench.store.apply(claim, effect);
}

/// What TransactionalStore asks for, one check a sentence.
template <class Bench>
[[nodiscard]] std::vector<StoreCheck<Bench>> transaction_checks() {
  using Transaction = typename Bench::Store::Transaction;
  static constexpr auto key = [] { return Key{"shop", "book.v1", "e-1"}; };
  std::vector<StoreCheck<Bench>> checks;
  const auto add = [&](std::string sentence, auto show) { checks.push_back({std::move(sentence), show}); };

  add("apply commits the key and its effect together", [](Bench& bench, Findings& f) {
    const Key k = key();
    f.expect_answer<Committed>(apply_sum(bench, {.key = k}), "a free key is answered Committed");
    f.expect(bench.sum() == 1, "the effect is committed");
    f.expect_answer<Found>(apply_sum(bench, {.key = k}), "the key is taken from then on");
    f.expect(bench.sum() == 1, "the effect of a taken key is not there");
  });
  add("an effect that throws leaves neither effect nor key", [](Bench& bench, Findings& f) {
    const Key k = key();
    f.expect_answer<Failed>(apply_throwing(bench, {.key = k}, TransientError{"down"}), "it is Failed");
    f.expect(bench.sum() == 0, "its effect is not there");
    f.expect_answer<Committed>(apply_sum(bench, {.key = k}), "its key is free");
  });
  add("what the effect throws says what kind of failure it is", [](Bench& bench, Findings& f) {
    const Key k = key();
    const auto kind = [](const Applied& met) {
      const auto* failed = std::get_if<Failed>(&met);
      return failed == nullptr ? std::string{} : std::string{to_string(failed->failure.kind)};
    };
    f.expect(kind(apply_throwing(bench, {.key = k}, PermanentError{"never"})) == "permanent",
             "PermanentError is permanent");
    f.expect(kind(apply_throwing(bench, {.key = k}, TransientError{"later"})) == "transient",
             "TransientError is transient");
    f.expect(kind(apply_throwing(bench, {.key = k}, TransientError{"later", std::chrono::seconds{3}})) ==
                 "throttled",
             "TransientError with a time to come back is throttled");
    f.expect(kind(apply_throwing(bench, {.key = k}, 42)) == "transient", "what is unknown is transient");
    const Applied early = apply_throwing(bench, {.key = k}, PreconditionFailed{"early"});
    const auto* failed = std::get_if<Failed>(&early);
    f.expect(failed != nullptr && failed->retry == Retry::by_redelivery,
             "PreconditionFailed is left to redelivery");
  });
  add("a ConfigurationError of the effect is let out, and nothing stays", [](Bench& bench, Findings& f) {
    const Key k = key();
    bool thrown = false;
    try {
      static_cast<void>(apply_throwing(bench, {.key = k}, ConfigurationError{"wrong"}));
    } catch (const ConfigurationError&) {
      thrown = true;
    }
    f.expect(thrown, "it is let out");
    f.expect(bench.sum() == 0, "its effect is not there");
    f.expect_answer<Committed>(apply_sum(bench, {.key = k}), "its key is free");
  });
  add("a taken key is Found with the row's token, fingerprint and value, and its effect is not run",
      [](Bench& bench, Findings& f) {
        const Key k = key();
        const Fingerprint print = fingerprint_of("first");
        static_cast<void>(apply_sum(bench, {.key = k, .fingerprint = print}, 1, "receipt"));
        bool ran = false;
        const auto effect = [&](Transaction&) -> StoredValue {
          ran = true;
          return std::nullopt;
        };
        const Applied one = bench.store.apply({.key = k, .fingerprint = fingerprint_of("other")}, effect);
        const Applied two = bench.store.apply({.key = k, .on_concurrent = Concurrent::defer}, effect);
        const auto* found = std::get_if<Found>(&one);
        const auto* again = std::get_if<Found>(&two);
        f.expect(!ran, "the effect is not run");
        f.expect(found != nullptr && again != nullptr, "both are Found");
        if (found == nullptr || again == nullptr) return;
        f.expect(found->fingerprint == print, "the fingerprint is the one that was stored");
        f.expect(found->value == StoredValue{"receipt"}, "the value is the one that was stored");
        f.expect(found->token == again->token, "the token is the row's");
      });
  add("a value of any bytes is kept, an empty one is not none", [](Bench& bench, Findings& f) {
    const Key empty{"shop", "book.v1", "empty"};
    const Key bytes{"shop", "book.v1", "bytes"};
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    static_cast<void>(apply_sum(bench, {.key = empty}, 1, std::string{}));
    static_cast<void>(apply_sum(bench, {.key = bytes}, 1, all));
    const Applied one = apply_sum(bench, {.key = empty});
    const Applied two = apply_sum(bench, {.key = bytes});
    f.expect(std::holds_alternative<Found>(one) && std::get<Found>(one).value == StoredValue{std::string{}},
             "an empty value is there");
    f.expect(std::holds_alternative<Found>(two) && std::get<Found>(two).value == StoredValue{all},
             "all bytes come back");
  });
  add("each row has a token of its own", [](Bench& bench, Findings& f) {
    std::vector<ClaimToken> tokens;
    for (const char* id : {"e-1", "e-2", "e-3"}) {
      const Key k{"shop", "book.v1", id};
      static_cast<void>(apply_sum(bench, {.key = k}));
      const Applied met = apply_sum(bench, {.key = k});
      if (const auto* found = std::get_if<Found>(&met)) tokens.push_back(found->token);
    }
    f.expect(tokens.size() == 3 && tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2],
             "no two are the same");
  });
  add("keys that differ in tenant, consumer or event id are different keys", [](Bench& bench, Findings& f) {
    for (const Key& k : {Key{"", "b", "e"}, Key{"a", "b", "e"}, Key{"a", "B", "e"}, Key{"a", "b", "e "},
                         Key{"ab", "b", "e"}})
      f.expect_answer<Committed>(apply_sum(bench, {.key = k}), k.to_string() + " is free");
  });
  add("the effect is run once, in a transaction that no earlier attempt touched",
      [](Bench& bench, Findings& f) {
        const Key k = key();
        static_cast<void>(apply_throwing(bench, {.key = k}, TransientError{"down"}));
        int runs = 0;
        std::int64_t seen = -1;
        const auto effect = [&](Transaction& tx) -> StoredValue {
          ++runs;
          seen = bench.seen(tx);
          return std::nullopt;
        };
        f.expect_answer<Committed>(bench.store.apply({.key = k}, effect), "it is Committed");
        f.expect(runs == 1, "the effect ran once");
        f.expect(seen == 0, "it saw nothing of the attempt before");
      });
  add("while a key is claimed, another claim that may not wait, or not for so long, is Busy",
      [](Bench& bench, Findings& f) {
        const Key k = key();
        Applied deferred;
        Applied waited;
        const auto effect = [&](Transaction& tx) -> StoredValue {
          bench.write(tx, 1);
          std::thread{[&] {
            deferred = apply_sum(bench, {.key = k, .on_concurrent = Concurrent::defer}, 10);
            waited = apply_sum(bench, {.key = k, .wait_limit = std::chrono::milliseconds{5}}, 10);
          }}.join();
          return std::nullopt;
        };
        f.expect_answer<Committed>(bench.store.apply({.key = k}, effect), "the holder is Committed");
        f.expect_answer<Busy>(deferred, "one that may not wait is Busy");
        f.expect_answer<Busy>(waited, "one that waited as long as it may is Busy");
        f.expect(bench.sum() == 1, "only the holder's effect is there");
      });
  add("a claim that waits finds the key when its holder commits, and takes it when its holder rolls back",
      [](Bench& bench, Findings& f) {
        for (const bool commits : {true, false}) {
          const Key k{"shop", "book.v1", commits ? "commits" : "rolls back"};
          Applied waited;
          std::thread waiter;
          std::atomic<bool> asks = false;
          const auto effect = [&](Transaction& tx) -> StoredValue {
            bench.write(tx, 1);
            waiter = std::thread{[&] {
              asks = true;
              waited = apply_sum(bench, {.key = k, .wait_limit = std::chrono::minutes{1}}, 10);
            }};
            while (!asks) std::this_thread::yield();
            if (!commits) throw TransientError{"no"};
            return std::nullopt;
          };
          static_cast<void>(bench.store.apply({.key = k}, effect));
          waiter.join();
          if (commits)
            f.expect_answer<Found>(waited, "the holder's row is Found");
          else
            f.expect_answer<Committed>(waited, "the key is taken over");
        }
        f.expect(bench.sum() == 11, "one effect of each key is there");
      });
  add("many threads that bring the same events make each effect once", [](Bench& bench, Findings& f) {
    constexpr int events = 8;
    std::atomic<int> committed = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int e = 0; e < events; ++e) {
          const Key k{"shop", "book.v1", std::to_string(e)};
          const Applied met = apply_sum(bench, {.key = k, .wait_limit = std::chrono::minutes{1}});
          if (std::holds_alternative<Committed>(met)) ++committed;
        }
      });
    for (std::thread& thread : threads) thread.join();
    f.expect(committed == events, "each event is Committed once");
    f.expect(bench.sum() == events, "each effect is there once");
  });
  add("a free key whose event is older than the window is BeyondWindow, a taken one Found",
      [](Bench& bench, Findings& f) {
        const Key k = key();
        const Claim old{.key = k,
                        .window = std::chrono::hours{1},
                        .occurred_at = std::chrono::sys_days{std::chrono::year{2000} / 1 / 1}};
        f.expect_answer<BeyondWindow>(apply_sum(bench, old), "a free key is BeyondWindow");
        f.expect(bench.sum() == 0, "its effect is not there");
        static_cast<void>(apply_sum(bench, {.key = k, .window = std::chrono::hours{1}}));
        f.expect_answer<Found>(apply_sum(bench, old), "a taken key is Found");
      });
  if constexpr (MovesTime<Bench>) {
    add("a key counts for its window, and is free afterwards", [](Bench& bench, Findings& f) {
      const Key k = key();
      const Claim claim{.key = k, .window = std::chrono::hours{1}};
      static_cast<void>(apply_sum(bench, claim));
      bench.advance(std::chrono::minutes{59});
      f.expect_answer<Found>(apply_sum(bench, claim), "it is Found before its window ends");
      bench.advance(std::chrono::minutes{2});
      f.expect_answer<Committed>(apply_sum(bench, claim), "it is free when its window has ended");
    });
    add("a key without a window counts for ever", [](Bench& bench, Findings& f) {
      const Key k = key();
      static_cast<void>(apply_sum(bench, {.key = k}));
      bench.advance(std::chrono::hours{24 * 365});
      f.expect_answer<Found>(apply_sum(bench, {.key = k}), "it is Found a year later");
    });
  }
  return checks;
}

}  // namespace idem::testing
