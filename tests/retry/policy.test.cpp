// SPDX-License-Identifier: MIT
#include <idem/retry/policy.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

constexpr auto policy = ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{5} | HonourRetryAfter{5s} |
                        MaxElapsed{20s} | WithinLease{2s};
static_assert(RetryPolicy<decltype(policy)>);
static_assert(!RetryStage<decltype(policy)>);
static_assert(std::is_trivially_copyable_v<decltype(policy)>);
static_assert(sizeof(policy) == 6 * sizeof(Duration));
static_assert(policy.decide({.failures = 2}) == RetryDecision{.hi = 200ms});

static_assert(is_bounded_v<decltype(policy)> && has_limit_v<decltype(policy)>);
static_assert(is_bounded_v<Intervals<1>> && has_limit_v<Intervals<1>>);
static_assert(is_bounded_v<MaxElapsed> && !has_limit_v<MaxElapsed>);
static_assert(!is_bounded_v<decltype(ExponentialBackoff{1s, 2s} | FullJitter{} | WithinLease{1s})>);

std::vector<RetryState> states() {
  std::vector<RetryState> all;
  const std::array<std::optional<Duration>, 6> spans{std::nullopt, -1s, 0s, 3s, 60s, Duration::max()};
  for (const std::uint64_t failures : {1ULL, 2ULL, 4ULL, 5ULL, ~0ULL}) {
    for (const Duration elapsed : {Duration{0s}, Duration{19s}, Duration{20s}, Duration::max()}) {
      for (const auto& hint : spans) {
        for (const auto& hold : spans) {
          for (const ErrorClass kind :
               {ErrorClass::transient, ErrorClass::permanent, ErrorClass::cancelled}) {
            all.push_back({failures, elapsed, 0s, kind, hint, hold});
          }
        }
      }
    }
  }
  return all;
}

// Drafts as backoffs and hints leave them.
std::vector<RetryDraft> drafts() {
  std::vector<RetryDraft> all;
  for (const RetryVerdict verdict : {RetryVerdict::retry, RetryVerdict::redeliver, RetryVerdict::stop}) {
    for (const Duration lo : {Duration{0s}, Duration{1s}, Duration{30s}, Duration::max()}) {
      for (const Duration width : {Duration{0s}, Duration{10s}}) {
        RetryDraft draft;
        draft.window(lo, detail::saturating_add(lo, width));
        draft.end(verdict,
                  verdict == RetryVerdict::retry ? RetryReason::backoff : RetryReason::hint_not_honoured);
        all.push_back(draft);
      }
    }
  }
  return all;
}

template <class... Limits>
RetryDecision joined(const RetryState& state, RetryDraft draft, const Limits&... limits) {
  (limits.apply(state, draft), ...);
  return draft.decision;
}

}  // namespace

TEST_CASE("the order and the grouping of stages do not matter", "[retry]") {
  constexpr ExponentialBackoff b{100ms, 5s};
  constexpr FullJitter j{};
  constexpr HonourRetryAfter h{5s};
  constexpr MaxAttempts a{5};
  constexpr MaxElapsed e{20s};
  constexpr WithinLease l{2s};
  constexpr auto reversed = l | e | h | a | j | b;
  constexpr auto grouped = (h | (l | j)) | ((a | e) | b);
  static_assert(std::is_same_v<decltype(reversed), decltype(policy)>);
  static_assert(std::is_same_v<decltype(grouped), decltype(policy)>);
  for (const RetryState& state : states()) {
    CHECK(reversed.decide(state) == policy.decide(state));
    CHECK(grouped.decide(state) == policy.decide(state));
  }
}

TEST_CASE("joining limits is associative, commutative and idempotent", "[retry]") {
  constexpr MaxAttempts a{5};
  constexpr MaxElapsed e{20s};
  constexpr WithinLease l{2s};
  for (const RetryState& state : states()) {
    for (const RetryDraft& draft : drafts()) {
      const RetryDecision all = joined(state, draft, a, e, l);
      CHECK(joined(state, draft, a, l, e) == all);
      CHECK(joined(state, draft, e, a, l) == all);
      CHECK(joined(state, draft, e, l, a) == all);
      CHECK(joined(state, draft, l, a, e) == all);
      CHECK(joined(state, draft, l, e, a) == all);
      CHECK(joined(state, draft, a, e, l, l, e, a) == all);
      CHECK(joined(state, draft, a, a) == joined(state, draft, a));
      CHECK(joined(state, draft, e, e) == joined(state, draft, e));
      CHECK(joined(state, draft, l, l) == joined(state, draft, l));
    }
  }
}

TEST_CASE("a window is never negative, never inverted, and there is none without a retry", "[retry]") {
  for (const RetryState& state : states()) {
    const RetryDecision decision = policy.decide(state);
    CHECK(decision.lo >= Duration::zero());
    CHECK(decision.lo <= decision.hi);
    if (decision.verdict != RetryVerdict::retry) CHECK(decision.hi == Duration::zero());
  }
}

TEST_CASE("only failures that may pass are retried", "[retry]") {
  const auto decide = [](ErrorClass kind) { return policy.decide({.kind = kind}); };
  for (const ErrorClass kind : {ErrorClass::transient, ErrorClass::throttled, ErrorClass::reconnect}) {
    CHECK(decide(kind) == RetryDecision{.hi = 100ms});
  }
  for (const ErrorClass kind : {ErrorClass::permanent, ErrorClass::configuration}) {
    CHECK(decide(kind) == RetryDecision{.verdict = RetryVerdict::stop, .reason = RetryReason::not_retryable});
  }
  for (const ErrorClass kind : {ErrorClass::in_doubt, ErrorClass::cancelled}) {
    CHECK(decide(kind) ==
          RetryDecision{.verdict = RetryVerdict::redeliver, .reason = RetryReason::not_retryable});
  }
}

TEST_CASE("every reason has a phrase", "[retry]") {
  for (int reason = 0; reason <= static_cast<int>(RetryReason::budget_empty); ++reason) {
    CHECK(to_string(static_cast<RetryReason>(reason)) != "unknown");
  }
  CHECK(to_string(RetryReason::max_attempts) == "max attempts reached");
}
