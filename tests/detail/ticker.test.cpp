// SPDX-License-Identifier: MIT
#include <idem/detail/ticker.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using detail::Ticker;

namespace {

static_assert(!std::is_copy_constructible_v<Ticker>);

/// What the ticking thread and the test tell each other.
struct Desk {
  std::mutex mutex;
  std::condition_variable changed;
  int ticks = 0;
  bool inside = false;
  bool let_go = false;

  void tell(const std::function<void()>& change) {
    {
      const std::lock_guard lock{mutex};
      change();
    }
    changed.notify_all();
  }
  /// Whether it comes to hold within a bound.
  bool wait(const std::function<bool()>& condition, Duration limit = 60s) {
    std::unique_lock lock{mutex};
    return changed.wait_for(lock, limit, condition);
  }
};

}  // namespace

TEST_CASE("a ticker ticks again and again, on a thread of its own", "[ticker]") {
  Desk desk;
  std::thread::id where;
  const Ticker ticker{1ms, [&] {
                        desk.tell([&] {
                          ++desk.ticks;
                          where = std::this_thread::get_id();
                        });
                      }};
  CHECK(desk.wait([&] { return desk.ticks >= 5; }));
  const std::lock_guard lock{desk.mutex};
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("the first tick comes after a period, and an ended ticker does not wait for it", "[ticker]") {
  for (const Duration every : {Duration{1h}, Duration{100'000h}, Duration::max()}) {
    int ticks = 0;
    const auto began = std::chrono::steady_clock::now();
    {
      const Ticker ticker{every, [&] { ++ticks; }};
    }
    CHECK(std::chrono::steady_clock::now() - began < 30min);
    CHECK(ticks == 0);
  }
}

TEST_CASE("a tick that runs as the ticker ends is waited for, and none follows", "[ticker]") {
  Desk desk;
  bool ended = false;
  int late = 0;
  std::optional<Ticker> ticker{std::in_place, 1ms, [&] {
                                 desk.tell([&] {
                                   ++desk.ticks;
                                   desk.inside = true;
                                   if (ended) ++late;
                                 });
                                 static_cast<void>(desk.wait([&] { return desk.let_go; }));
                                 desk.tell([&] { desk.inside = false; });
                               }};
  REQUIRE(desk.wait([&] { return desk.inside; }));
  std::thread ending{[&] {
    ticker.reset();
    desk.tell([&] { ended = true; });
  }};
  CHECK_FALSE(desk.wait([&] { return ended; }, 50ms));  // it would come at once if nobody waited
  desk.tell([&] { desk.let_go = true; });
  ending.join();
  const int ticks = desk.ticks;
  CHECK_FALSE(desk.inside);
  CHECK_FALSE(desk.wait([&] { return desk.ticks > ticks; }, 20ms));
  CHECK(late == 0);
}

TEST_CASE("ticks do not overlap, and a slow one delays the next", "[ticker]") {
  Desk desk;
  int overlaps = 0;
  {
    const Ticker ticker{1ns, [&] {
                          desk.tell([&] {
                            if (desk.inside) ++overlaps;
                            desk.inside = true;
                          });
                          std::this_thread::yield();
                          desk.tell([&] {
                            desk.inside = false;
                            ++desk.ticks;
                          });
                        }};
    CHECK(desk.wait([&] { return desk.ticks >= 100; }));
  }
  CHECK(overlaps == 0);
}

TEST_CASE("a hundred tickers ended as they tick leave nothing running", "[ticker]") {
  Desk desk;
  for (int i = 0; i < 100; ++i) {
    const int before = desk.ticks;
    const Ticker ticker{1us, [&] { desk.tell([&] { ++desk.ticks; }); }};
    CHECK(desk.wait([&] { return desk.ticks > before; }));
  }
  const int ticks = desk.ticks;
  CHECK_FALSE(desk.wait([&] { return desk.ticks > ticks; }, 20ms));
}
