// SPDX-License-Identifier: MIT
#include <idem/detail/key_gate.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/retry/sample.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using detail::KeyGate;

namespace {

[[nodiscard]] Key key_of(int n) { return Key{"t", "c", "e-" + std::to_string(n)}; }
[[nodiscard]] auto at_once() { return std::chrono::steady_clock::time_point{}; }
[[nodiscard]] auto in_a_minute() { return std::chrono::steady_clock::now() + 60s; }

static_assert(!std::is_copy_constructible_v<KeyGate::Pass>);
static_assert(std::is_nothrow_move_constructible_v<KeyGate::Pass>);

}  // namespace

TEST_CASE("a key lets one through, and the next when that one has left", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  const Key equal = key_of(1);
  {
    const auto pass = gate.enter(key, at_once(), {});
    REQUIRE(pass);
    CHECK_FALSE(gate.enter(key, at_once(), {}));
    CHECK_FALSE(gate.enter(equal, at_once(), {}));
  }
  CHECK(gate.enter(equal, at_once(), {}));
}

TEST_CASE("keys that differ in one part do not meet", "[key_gate]") {
  KeyGate gate;
  const std::array keys{Key{"t", "c", "e"}, Key{"u", "c", "e"}, Key{"t", "d", "e"}, Key{"t", "c", "f"},
                        Key{"tc", "e", "e"}};
  std::vector<KeyGate::Pass> passes;
  for (const Key& key : keys) {
    auto pass = gate.enter(key, at_once(), {});
    REQUIRE(pass);
    passes.push_back(*std::move(pass));
  }
  for (const Key& key : keys) CHECK_FALSE(gate.enter(key, at_once(), {}));
  passes.clear();
  for (const Key& key : keys) CHECK(gate.enter(key, at_once(), {}));
}

TEST_CASE("a pass that was moved holds the key until its last home is gone", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  auto first = gate.enter(key, at_once(), {});
  REQUIRE(first);
  {
    const KeyGate::Pass second = *std::move(first);
    first.reset();
    CHECK_FALSE(gate.enter(key, at_once(), {}));
  }
  CHECK(gate.enter(key, at_once(), {}));
}

TEST_CASE("a free key is entered whatever the deadline and the stop token say", "[key_gate]") {
  KeyGate gate;
  std::stop_source stop;
  stop.request_stop();
  const Key key = key_of(1);
  CHECK(gate.enter(key, at_once(), {}));
  CHECK(gate.enter(key, std::chrono::steady_clock::time_point::min(), stop.get_token()));
}

TEST_CASE("a wait for a held key ends at its deadline, not before", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  const auto pass = gate.enter(key, at_once(), {});
  const auto deadline = std::chrono::steady_clock::now() + 5ms;
  CHECK_FALSE(gate.enter(key, deadline, {}));
  CHECK(std::chrono::steady_clock::now() >= deadline);
}

TEST_CASE("a stop ends a wait, before it and during it", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  const auto pass = gate.enter(key, at_once(), {});
  std::stop_source before;
  before.request_stop();
  CHECK_FALSE(gate.enter(key, in_a_minute(), before.get_token()));

  std::stop_source during;
  std::latch waits{1};
  bool entered = true;
  std::thread waiter{[&] {
    waits.count_down();
    entered = gate.enter(key, in_a_minute(), during.get_token()).has_value();
  }};
  waits.wait();
  during.request_stop();
  waiter.join();
  CHECK_FALSE(entered);
}

TEST_CASE("a waiter that gave up leaves nothing behind", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  {
    const auto pass = gate.enter(key, at_once(), {});
    for (int i = 0; i < 100; ++i) {
      const Key short_lived = key_of(1);
      CHECK_FALSE(gate.enter(short_lived, at_once(), {}));
    }
  }
  CHECK(gate.enter(key, at_once(), {}));
}

TEST_CASE("a deadline at the end of time is waited for", "[key_gate]") {
  KeyGate gate;
  const Key key = key_of(1);
  auto pass = gate.enter(key, at_once(), {});
  std::latch waits{1};
  std::atomic<bool> entered = false;
  std::thread waiter{[&] {
    waits.count_down();
    entered = gate.enter(key, std::chrono::steady_clock::time_point::max(), {}).has_value();
  }};
  waits.wait();
  pass.reset();
  waiter.join();
  CHECK(entered);
}

TEST_CASE("a key that is left is passed on, although others wait for another key", "[key_gate]") {
  KeyGate gate;
  const Key busy = key_of(1);
  const Key free = key_of(2);
  auto busy_pass = gate.enter(busy, at_once(), {});
  auto free_pass = gate.enter(free, at_once(), {});
  std::vector<std::thread> waiters;
  std::atomic<int> entered = 0;
  std::latch calling{4};
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([&] {
      calling.count_down();
      if (gate.enter(busy, in_a_minute(), {})) ++entered;
    });
  calling.wait();
  for (int i = 0; i < 1'000; ++i) std::this_thread::yield();  // so that they wait by now
  bool passed_on = false;
  std::latch about_to_wait{1};
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  std::thread waiter{[&] {
    about_to_wait.count_down();
    // A wake-up that was lost shows as an entry at the deadline.
    passed_on = gate.enter(free, deadline, {}).has_value() && std::chrono::steady_clock::now() < deadline;
  }};
  about_to_wait.wait();
  for (int i = 0; i < 1'000; ++i) std::this_thread::yield();
  free_pass.reset();
  waiter.join();
  CHECK(passed_on);
  CHECK(entered == 0);
  busy_pass.reset();
  for (std::thread& one : waiters) one.join();
  CHECK(entered == 4);
}

TEST_CASE("no wake-up is lost and no two are inside, among many threads and few keys", "[key_gate]") {
  constexpr int threads = 8;
  constexpr int rounds = 2'000;
  constexpr std::size_t keys = 3;
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  KeyGate gate;
  std::array<std::atomic<int>, keys> inside{};
  std::array<int, keys> entered{};  // guarded by the gate
  std::atomic<int> collisions = 0;
  std::atomic<int> lost = 0;
  std::latch go{threads};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      SplitMix64 random{seed + static_cast<std::uint64_t>(t)};
      go.arrive_and_wait();
      for (int i = 0; i < rounds; ++i) {
        const std::size_t n = random() % keys;
        const Key key = key_of(static_cast<int>(n));
        const auto pass = gate.enter(key, in_a_minute(), {});
        if (!pass) {
          ++lost;
          continue;
        }
        if (++inside[n] != 1) ++collisions;
        ++entered[n];
        if (i % 16 == 0) std::this_thread::yield();
        --inside[n];
      }
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(lost == 0);
  CHECK(collisions == 0);
  CHECK(entered[0] + entered[1] + entered[2] == threads * rounds);
}

TEST_CASE("waits that are stopped, time out or succeed at once never block the key for ever", "[key_gate]") {
  constexpr int threads = 6;
  constexpr int rounds = 300;
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  KeyGate gate;
  std::atomic<int> wrong = 0;
  int entered = 0;  // guarded by the gate
  std::atomic<int> passed = 0;
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      SplitMix64 random{seed + static_cast<std::uint64_t>(t)};
      for (int i = 0; i < rounds; ++i) {
        const Key key = key_of(1);
        std::stop_source stop;
        if (random() % 4 == 0) stop.request_stop();
        const auto deadline = random() % 3 == 0 ? at_once() : in_a_minute();
        std::thread stopper;
        if (random() % 4 == 0) stopper = std::thread{[&stop] { stop.request_stop(); }};
        {
          const auto mine = gate.enter(key, deadline, stop.get_token());
          if (mine) {
            ++entered;
            ++passed;
          } else if (deadline != at_once() && !stop.stop_requested()) {
            ++wrong;
          }
        }
        if (stopper.joinable()) stopper.join();
      }
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == 0);
  CHECK(entered == passed);
  const Key key = key_of(1);
  CHECK(gate.enter(key, at_once(), {}));
}
