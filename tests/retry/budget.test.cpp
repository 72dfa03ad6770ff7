// SPDX-License-Identifier: MIT
#include <idem/retry/budget.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include <idem/retry/backoff.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

static_assert(RetryStage<WithBudget>);
static_assert(!std::is_copy_constructible_v<RetryBudget> &&
              !std::is_constructible_v<WithBudget, RetryBudget>);

namespace {

constinit RetryBudget made_at_compile_time{500, 10};

// Retries that `successes` successes pay for, once the bucket is empty.
int paid_for(int successes, int refund_percent) {
  RetryBudget budget{1'000'000, refund_percent};
  while (budget.withdraw()) {
  }
  for (int i = 0; i < successes; ++i) budget.refund();
  int retries = 0;
  while (budget.withdraw()) ++retries;
  return retries;
}

}  // namespace

TEST_CASE("a budget starts full and ends empty", "[retry]") {
  CHECK(made_at_compile_time.tokens() == 500);
  RetryBudget budget{2, 10};
  CHECK(budget.withdraw());
  CHECK(budget.withdraw());
  CHECK_FALSE(budget.withdraw());
  CHECK_FALSE(budget.withdraw());
  CHECK(budget.tokens() == 0);
}

// tower-rs/tower#857: a budget of 60 % let as many retries through as one of 100 %.
TEST_CASE("every refund percentage is exact", "[retry]") {
  for (int percent = 0; percent <= 100; ++percent) {
    CAPTURE(percent);
    CHECK(paid_for(1'000, percent) == 10 * percent);
  }
}

TEST_CASE("refunds never fill a budget above its size", "[retry]") {
  RetryBudget budget{3, 70};
  CHECK(budget.withdraw());
  for (int i = 0; i < 100; ++i) budget.refund();
  CHECK(budget.tokens() == 3);
  for (int i = 0; i < 3; ++i) CHECK(budget.withdraw());
  CHECK_FALSE(budget.withdraw());
}

TEST_CASE("a budget that makes no sense is refused", "[retry]") {
  CHECK_THROWS_AS((RetryBudget{0, 10}), std::invalid_argument);
  CHECK_THROWS_AS((RetryBudget{-1, 10}), std::invalid_argument);
  CHECK_THROWS_AS((RetryBudget{std::numeric_limits<std::int64_t>::max(), 10}), std::invalid_argument);
  CHECK_THROWS_AS((RetryBudget{1, -1}), std::invalid_argument);
  CHECK_THROWS_AS((RetryBudget{1, 101}), std::invalid_argument);
}

TEST_CASE("deciding does not charge the budget, withdrawing does, and copies share it", "[retry]") {
  RetryBudget budget{2, 50};
  const auto policy = WithBudget{budget} | ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{5};
  static_assert(std::is_trivially_copyable_v<decltype(policy)>);
  const auto copy = policy;
  for (int i = 0; i < 10; ++i) CHECK(policy.decide({}).verdict == RetryVerdict::retry);
  CHECK(budget.tokens() == 2);
  CHECK(policy.withdraw());
  CHECK(copy.withdraw());
  CHECK_FALSE(policy.withdraw());
  policy.succeeded();
  copy.succeeded();
  CHECK(budget.tokens() == 1);
}

TEST_CASE("threads that share a budget take each token once", "[retry]") {
  RetryBudget budget{1'000, 10};
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (budget.withdraw()) taken.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(taken == 1'000);
}

TEST_CASE("a policy without a budget is never out of tokens", "[retry]") {
  constexpr auto policy = ExponentialBackoff{100ms, 5s} | MaxAttempts{5};
  CHECK(policy.withdraw());
  policy.succeeded();
}
