// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/store.hpp>
#include <idem/testing/conformance/check.hpp>

namespace idem::testing {

/// Acquires, or says that it could not.
///
/// Throws: std::runtime_error — there is no grant to go on with.
template <class Bench>
[[nodiscard]] Grant acquire_lease(Bench& bench, const Claim& claim,
                                  std::optional<Duration> lease = std::chrono::minutes{1}) {
  const Acquired met = bench.store.acquire(claim, lease);
  if (const auto* grant = std::get_if<Grant>(&met)) return *grant;
  throw std::runtime_error{"acquire gave no grant for " + claim.key.to_string()};
}

/// What LeaseStore asks for, one check a sentence.
template <class Bench>
[[nodiscard]] std::vector<StoreCheck<Bench>> lease_checks() {
  static constexpr auto key = [] { return Key{"shop", "mail.v1", "e-1"}; };
  static constexpr Duration minute = std::chrono::minutes{1};
  std::vector<StoreCheck<Bench>> checks;
  const auto add = [&](std::string sentence, auto show) { checks.push_back({std::move(sentence), show}); };

  add("a leased key is Leased at once, for its rest", [](Bench& bench, Findings& f) {
    const Key k = key();
    static_cast<void>(acquire_lease(bench, {.key = k}));
    const Acquired met = bench.store.acquire({.key = k}, minute);
    const auto* leased = std::get_if<Leased>(&met);
    f.expect(leased != nullptr, "it is Leased");
    f.expect(leased != nullptr && leased->rest && *leased->rest > Duration{0} && *leased->rest <= minute,
             "the rest is above zero, and not above the length");
  });
  add("a lease without a length has no rest", [](Bench& bench, Findings& f) {
    const Key k = key();
    static_cast<void>(acquire_lease(bench, {.key = k}, std::nullopt));
    const Acquired met = bench.store.acquire({.key = k}, minute);
    const auto* leased = std::get_if<Leased>(&met);
    f.expect(leased != nullptr && !leased->rest, "it is Leased, without a rest");
  });
  add("fencing tokens grow, over all keys and over releases", [](Bench& bench, Findings& f) {
    std::uint64_t last = 0;
    for (int round = 0; round < 3; ++round)
      for (const char* id : {"a", "b"}) {
        const Key k{"shop", "mail.v1", id};
        const Grant grant = acquire_lease(bench, {.key = k});
        f.expect(grant.fence > last, "each is greater than every one before");
        last = grant.fence;
        f.expect_answer<Kept>(bench.store.release({.key = k}, grant), "it can be released");
      }
  });
  add("a completed key is Found, with its value and fingerprint", [](Bench& bench, Findings& f) {
    const Key k = key();
    const Claim claim{.key = k, .fingerprint = fingerprint_of("first")};
    const Grant grant = acquire_lease(bench, claim);
    f.expect_answer<Kept>(bench.store.complete(claim, grant, "receipt"), "it can be completed");
    const Acquired met = bench.store.acquire({.key = k, .fingerprint = fingerprint_of("other")}, minute);
    const auto* found = std::get_if<Found>(&met);
    f.expect(found != nullptr, "it is Found");
    f.expect(found != nullptr && found->value == StoredValue{"receipt"}, "with the value");
    f.expect(found != nullptr && found->fingerprint == claim.fingerprint, "with the fingerprint");
  });
  add("a released key is free at once", [](Bench& bench, Findings& f) {
    const Key k = key();
    const Grant grant = acquire_lease(bench, {.key = k});
    f.expect_answer<Kept>(bench.store.release({.key = k}, grant), "it can be released");
    const Acquired met = bench.store.acquire({.key = k}, minute);
    f.expect_answer<Grant>(met, "it can be acquired again");
  });
  add("a lease that was taken over is Lost to its first owner, and the successor's is not touched",
      [](Bench& bench, Findings& f) {
        const Key k = key();
        const Claim claim{.key = k};
        const Grant old = acquire_lease(bench, claim);
        static_cast<void>(bench.store.release(claim, old));
        const Grant successor = acquire_lease(bench, claim);
        f.expect_answer<Lost>(bench.store.extend(claim, old, std::chrono::nanoseconds{1}), "extend is Lost");
        f.expect_answer<Lost>(bench.store.complete(claim, old, "old"), "complete is Lost");
        f.expect_answer<Lost>(bench.store.release(claim, old), "release is Lost");
        f.expect_answer<Leased>(bench.store.acquire(claim, minute), "the successor's lease is there");
        f.expect_answer<Kept>(bench.store.complete(claim, successor, "new"), "the successor completes");
      });
  add("a second complete of one grant is Kept, and changes nothing", [](Bench& bench, Findings& f) {
    const Key k = key();
    const Claim claim{.key = k};
    const Grant grant = acquire_lease(bench, claim);
    static_cast<void>(bench.store.complete(claim, grant, "first"));
    f.expect_answer<Kept>(bench.store.complete(claim, grant, "first"), "it is Kept");
    const Acquired met = bench.store.acquire(claim, minute);
    f.expect(std::holds_alternative<Found>(met) && std::get<Found>(met).value == StoredValue{"first"},
             "the value is there");
  });
  add("a completed key can neither be extended nor released", [](Bench& bench, Findings& f) {
    const Key k = key();
    const Claim claim{.key = k};
    const Grant grant = acquire_lease(bench, claim);
    static_cast<void>(bench.store.complete(claim, grant, std::nullopt));
    f.expect_answer<Lost>(bench.store.extend(claim, grant, minute), "extend is Lost");
    f.expect_answer<Lost>(bench.store.release(claim, grant), "release is Lost");
    f.expect_answer<Found>(bench.store.acquire(claim, minute), "it is Found");
  });
  add("a grant of another key, or of nobody, is Lost", [](Bench& bench, Findings& f) {
    const Key k = key();
    const Key other{"shop", "mail.v1", "e-2"};
    const Grant grant = acquire_lease(bench, {.key = k});
    f.expect_answer<Lost>(bench.store.complete({.key = other}, grant, std::nullopt),
                          "complete of a key that nobody has");
    f.expect_answer<Lost>(bench.store.release({.key = other}, grant), "release of a key that nobody has");
    static_cast<void>(acquire_lease(bench, {.key = other}));
    f.expect_answer<Lost>(bench.store.extend({.key = other}, grant, minute), "extend of another's key");
  });
  add("an event older than the window is lent to nobody", [](Bench& bench, Findings& f) {
    const Key k = key();
    f.expect_answer<BeyondWindow>(
        bench.store.acquire({.key = k,
                             .window = std::chrono::hours{1},
                             .occurred_at = std::chrono::sys_days{std::chrono::year{2000} / 1 / 1}},
                            minute),
        "it is BeyondWindow");
  });
  if constexpr (MovesTime<Bench>) {
    add("a lease ends after its length, and is taken over with a greater token",
        [](Bench& bench, Findings& f) {
          const Key k = key();
          const Claim claim{.key = k};
          const Grant old = acquire_lease(bench, claim);
          bench.advance(std::chrono::seconds{59});
          f.expect_answer<Leased>(bench.store.acquire(claim, minute), "it is Leased before its end");
          bench.advance(std::chrono::seconds{2});
          const Grant grant = acquire_lease(bench, claim);
          f.expect(grant.fence > old.fence, "the token is greater");
          f.expect_answer<Lost>(bench.store.complete(claim, old, "old"), "its first owner cannot complete");
          f.expect_answer<Lost>(bench.store.release(claim, old), "nor release");
          f.expect_answer<Lost>(bench.store.extend(claim, old, minute), "nor extend");
        });
    add("extend moves the end to so long from now, not from the old end", [](Bench& bench, Findings& f) {
      const Key k = key();
      const Claim claim{.key = k};
      const Grant grant = acquire_lease(bench, claim);
      bench.advance(std::chrono::seconds{50});
      f.expect_answer<Kept>(bench.store.extend(claim, grant, minute), "it is Kept");
      bench.advance(std::chrono::seconds{50});
      f.expect_answer<Leased>(bench.store.acquire(claim, minute), "it is held beyond the old end");
      bench.advance(std::chrono::seconds{11});
      f.expect_answer<Grant>(bench.store.acquire(claim, minute), "and not longer than it was extended for");
    });
    add("a lease that has ended is its owner's still, until somebody takes over",
        [](Bench& bench, Findings& f) {
          const Key k = key();
          const Claim claim{.key = k};
          const Grant grant = acquire_lease(bench, claim);
          bench.advance(std::chrono::minutes{5});
          f.expect_answer<Kept>(bench.store.extend(claim, grant, minute), "it can be extended");
          bench.advance(std::chrono::minutes{5});
          f.expect_answer<Kept>(bench.store.complete(claim, grant, std::nullopt), "and completed");
        });
    add("a lease without a length is never taken over", [](Bench& bench, Findings& f) {
      const Key k = key();
      static_cast<void>(acquire_lease(bench, {.key = k}, std::nullopt));
      bench.advance(std::chrono::hours{24 * 365});
      f.expect_answer<Leased>(bench.store.acquire({.key = k}, minute), "it is Leased a year later");
    });
    add("a completed key counts for the claim's window", [](Bench& bench, Findings& f) {
      const Key k = key();
      const Claim claim{.key = k, .window = std::chrono::hours{1}};
      const Grant grant = acquire_lease(bench, claim);
      static_cast<void>(bench.store.complete(claim, grant, std::nullopt));
      bench.advance(std::chrono::minutes{59});
      f.expect_answer<Found>(bench.store.acquire(claim, minute), "it is Found before its window ends");
      bench.advance(std::chrono::minutes{2});
      f.expect_answer<Grant>(bench.store.acquire(claim, minute), "it is free afterwards");
    });
  }
  return checks;
}

}  // namespace idem::testing
