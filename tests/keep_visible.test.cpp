// SPDX-License-Identifier: MIT
#include <idem/keep_visible.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include <idem/consumer.hpp>
#include <idem/memory/store.hpp>

#include "conformance/leasing.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

/// The transport's hold, extended a number of times.
struct Hold {
  Signal signal{};
  int extended = 0;
  bool inside = false;
  bool handler_over = false;
  int late = 0;

  [[nodiscard]] KeepVisible every(Duration span) {
    return {span, [this] {
              signal.tell([&] {
                ++extended;
                if (handler_over) ++late;
              });
            }};
  }
  void await(int more) {
    int target = 0;
    signal.tell([&] { target = extended + more; });
    signal.wait([&] { return extended >= target; });
  }
};

/// Shows something with a handler in the store, and with one outside.
template <class Show>
void in_both_modes(Show show) {
  {
    INFO("the effect is in the store");
    show([](auto work) { return [work](MemoryStore<>::Transaction&, const Payment&) { work(); }; });
  }
  INFO("the effect is outside of the store");
  show([](auto work) { return [work](Lease&, const Payment&) { work(); }; });
}

}  // namespace

TEST_CASE("the transport's hold is extended while the handler runs, and not afterwards", "[keep_visible]") {
  in_both_modes([](auto handler) {
    MemoryStore<> store;
    Hold hold;
    const IdempotentConsumer pay{"pay.v1", store, handler([&] { hold.await(3); }), hold.every(1ms)};
    check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
    const int extended = hold.extended;
    CHECK(extended >= 3);
    CHECK_FALSE(hold.signal.wait_for(20ms, [&] { return hold.extended > extended; }));
    check_outcome(pay(Payment{}), Status::duplicate, Action::acknowledge, 0);
    CHECK(hold.extended == extended);
  });
}

TEST_CASE("an extension that runs as the handler ends is waited for", "[keep_visible]") {
  in_both_modes([](auto handler) {
    MemoryStore<> store;
    Signal signal;
    bool inside = false;
    bool returned = false;
    int overlaps = 0;
    const KeepVisible keep{1ms, [&] {
                             signal.tell([&] { inside = true; });
                             static_cast<void>(signal.wait_for(50ms, [&] { return returned; }));
                             signal.tell([&] { inside = false; });
                           }};
    for (const int how : {0, 1, 2}) {
      returned = false;
      const IdempotentConsumer pay{"pay.v" + std::to_string(how), store, handler([&] {
                                     signal.wait([&] { return inside; });
                                     if (how == 1) throw TransientError{"down"};
                                     if (how == 2) throw ConfigurationError{"wrong"};
                                   }),
                                   keep};
      try {
        static_cast<void>(pay(Payment{}));
      } catch (const ConfigurationError&) {
      }
      signal.tell([&] {
        returned = true;
        if (inside) ++overlaps;
      });
    }
    CHECK(overlaps == 0);
  });
}

TEST_CASE("an extension that fails is told to the observer, goes on, and harms nothing", "[keep_visible]") {
  in_both_modes([](auto handler) {
    MemoryStore<> store;
    Signal signal;
    int calls = 0;
    Recorder seen;
    const IdempotentConsumer pay{"pay.v1", store, handler([&] { signal.wait([&] { return calls >= 4; }); }),
                                 KeepVisible{1ms,
                                             [&] {
                                               int n = 0;
                                               signal.tell([&] { n = ++calls; });
                                               if (n % 2 == 1) throw std::runtime_error{"the queue is gone"};
                                               throw 42;
                                             }},
                                 seen};
    check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
    CHECK(seen.count(Observed::keep_visible_failed) == calls);
    CHECK(seen.entries().front().key == Key{"", "pay.v1", "p-1"}.to_string());
    CHECK(seen.entries().back().what == Observed::decided);
  });
}

TEST_CASE("an observer that throws about a failed extension harms nothing", "[keep_visible]") {
  struct Angry {
    void observe(const Observation&) const { throw std::runtime_error{"no"}; }
  };
  MemoryStore<> store;
  Signal signal;
  int calls = 0;
  const IdempotentConsumer pay{
      "pay.v1", store,
      [&](MemoryStore<>::Transaction&, const Payment&) { signal.wait([&] { return calls >= 2; }); },
      KeepVisible{1ms,
                  [&] {
                    signal.tell([&] { ++calls; });
                    throw std::runtime_error{"the queue is gone"};
                  }},
      Angry{}};
  check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
}

TEST_CASE("each attempt of a call is held, and the waits between them are not", "[keep_visible]") {
  in_both_modes([](auto handler) {
    MemoryStore<> store;
    Hold hold;
    FakeTime time;
    int starts = 0;
    time.on_sleep = [&] {
      const int before = hold.extended;
      CHECK_FALSE(hold.signal.wait_for(20ms, [&] { return hold.extended > before; }));
    };
    const IdempotentConsumer pay{"pay.v1",
                                 store,
                                 handler([&] {
                                   hold.await(2);
                                   if (++starts < 2) throw TransientError{"down"};
                                 }),
                                 ConstantBackoff{1s} | NoJitter{} | MaxAttempts{2},
                                 hold.every(1ms),
                                 time.runtime()};
    check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 2);
    CHECK(time.slept().size() == 1);
  });
}

TEST_CASE("what cannot hold anything is refused when the consumer is made", "[keep_visible]") {
  in_both_modes([](auto handler) {
    MemoryStore<> store;
    for (const Duration none : {Duration{0}, Duration{-1}, Duration::min()})
      CHECK_THROWS_AS((IdempotentConsumer{"pay.v1", store, handler([] {}), KeepVisible{none, [] {}}}),
                      ConfigurationError);
    CHECK_THROWS_AS((IdempotentConsumer{"pay.v1", store, handler([] {}), KeepVisible{1s, {}}}),
                    ConfigurationError);
    const IdempotentConsumer longest{"pay.v1", store, handler([] {}), KeepVisible{Duration::max(), [] {}}};
    check_outcome(longest(Payment{}), Status::applied, Action::acknowledge, 1);
  });
}
