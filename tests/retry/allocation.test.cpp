// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

thread_local int allocations = 0;

}  // namespace

// Weak, so that another test in the same program may count as well; then this one says so and fails.
__attribute__((weak)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc{};
}
__attribute__((weak)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
__attribute__((weak)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((weak)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("deciding, drawing, simulating and charging a budget allocate nothing", "[retry]") {
  allocations = 0;
  ::operator delete(::operator new(8));
  REQUIRE(allocations == 1);

  allocations = 0;
  SplitMix64 engine{1};
  RetryBudget budget{100, 10};
  const auto policy = ExponentialBackoff{100ms, 5s} | DecorrelatedJitter{} | MaxAttempts{50} |
                      MaxElapsed{1h} | HonourRetryAfter{5s} | WithinLease{2s} | WithBudget{budget};
  const Redeliver later{Intervals{1min, 5min} | ProportionalJitter{20}};
  RetryLoop loop{policy};
  Duration sum{};
  for (int i = 0; i < 60; ++i) {
    sum += loop.failed({.retry_after = 1s, .hold_left = 1h}, {}, engine).delay;
    sum += later.give_back({.failures = loop.failures()}).hi;
  }
  for (const Duration delay : simulate(policy, 1)) sum += delay;
  sum += worst_case_delay(policy);
  loop.succeeded();
  const int counted = allocations;
  CHECK(counted == 0);
  CHECK(sum > 0s);
}
