// SPDX-License-Identifier: MIT
#include <idem/testing/manual_clock.hpp>

#include <chrono>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using idem::testing::ManualClock;

TEST_CASE("a manual clock stands still until it is moved, and never goes back", "[testing]") {
  ManualClock clock;
  const auto now = clock.now();
  const auto store_now = clock.store_now();
  CHECK(clock.now() == now);
  clock.advance(3s);
  CHECK(clock.now() == now + 3s);
  CHECK(clock.store_now() == store_now + 3s);
  clock.advance_to(now + 2s);
  CHECK(clock.passed() == 3s);
  clock.advance_to(now + 10s);
  CHECK(clock.passed() == 10s);
  CHECK_THROWS_AS(clock.advance(-1ns), std::invalid_argument);
  clock.advance(Duration::max());
  CHECK(clock.passed() == Duration::max());
}

TEST_CASE("threads that move a manual clock at once lose no time", "[testing]") {
  ManualClock clock;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) clock.advance(1ms);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(clock.passed() == 4s);
}

TEST_CASE("a consumer on a manual clock sleeps by moving it, and a stopped one does not", "[testing]") {
  ManualClock clock;
  MemoryStore store{NoState{}, clock.store_clock()};
  const IdempotentConsumer failing{
      "f.v1", store, [](MemoryStore<>::Transaction&, const int&) { throw TransientError{"no"}; },
      ConstantBackoff{2s} | MaxAttempts{3}, clock.runtime()};
  CHECK(failing.process(Event{.id = "e"}, 1).attempts == 3);
  CHECK(clock.passed() == 4s);
  std::stop_source stop;
  stop.request_stop();
  clock.runtime().sleeper(clock.now() + 1h, stop.get_token());
  CHECK(clock.passed() == 4s);
}

TEST_CASE("windows of a MemoryStore end by the manual clock", "[testing]") {
  ManualClock clock;
  MemoryStore store{NoState{}, clock.store_clock()};
  const IdempotentConsumer count{"c.v1", store, [](MemoryStore<>::Transaction&, const int&) {},
                                 ConsumerOptions{.window = 1h}};
  CHECK(count.process(Event{.id = "e"}, 1).status == Status::applied);
  clock.advance(59min);
  CHECK(count.process(Event{.id = "e"}, 1).status == Status::duplicate);
  clock.advance(2min);
  CHECK(count.process(Event{.id = "e"}, 1).status == Status::applied);
}
