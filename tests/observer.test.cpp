// SPDX-License-Identifier: MIT
#include <idem/observer.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/consumer.hpp>

#include "conformance/bench.hpp"
#include "conformance/failures.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

using Tx = MemoryBench::Store::Transaction;

struct NotAnObserver {
  void observe(int) const {}
};
static_assert(Observer<NoObserver>);
static_assert(Observer<Recorder>);
static_assert(!Observer<NotAnObserver>);
static_assert(!Observer<int>);

/// Counts into what it does not own; can be observed with although it is constant.
struct Tally {
  std::shared_ptr<std::atomic<int>> told = std::make_shared<std::atomic<int>>(0);
  void observe(const Observation&) const { ++*told; }
};

/// Cannot be copied; a constant one counts as well.
struct Meter {
  Meter() = default;
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  mutable std::atomic<int> told = 0;
  void observe(const Observation&) const { ++told; }
};

/// Copies forget what the original was told.
struct Gauge {
  Gauge() = default;
  Gauge(const Gauge&) noexcept {}
  Gauge& operator=(const Gauge&) = delete;
  mutable std::atomic<int> told = 0;
  void observe(const Observation&) const { ++told; }
};

struct Thrower {
  std::shared_ptr<int> told = std::make_shared<int>(0);
  void observe(const Observation&) {
    if (++*told % 2 == 0) throw 42;
    throw std::runtime_error{"the metrics server is gone"};
  }
};

}  // namespace

TEST_CASE("an applied event is one decision", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  Recorder seen;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), seen};
  CHECK(pay(Payment{.tenant = "t"}).status == Status::applied);
  REQUIRE(seen.entries().size() == 1);
  const auto entry = seen.entries()[0];
  CHECK(entry.what == Observed::decided);
  CHECK(entry.key == "t/pay.v1/p-1");
  CHECK(entry.attempts == 1);
  CHECK(entry.status == Status::applied);
  CHECK(entry.action == Action::acknowledge);
  CHECK(entry.failure.empty());
}

TEST_CASE("each failed attempt and each retry is told, in their order, with what is known by then",
          "[observer]") {
  MemoryBench bench;
  int starts = 0;
  FakeTime time;
  Recorder seen;
  const IdempotentConsumer pay{"pay.v1",
                               bench.store,
                               failing(bench, starts, [](int) { throw TransientError{"bank is down"}; }),
                               ConstantBackoff{10ms} | NoJitter{} | MaxAttempts{2},
                               each_second(5),
                               time.runtime(),
                               seen};
  const auto outcome = pay(Payment{});
  CHECK(outcome.status == Status::deferred);
  CHECK(seen.told() == std::vector{Observed::attempt_failed, Observed::retrying, Observed::attempt_failed,
                                   Observed::decided});
  const auto entries = seen.entries();
  CHECK(entries[0].attempts == 1);
  CHECK(entries[1].attempts == 1);
  CHECK(entries[1].delay == 10ms);
  CHECK(entries[2].attempts == 2);
  CHECK(entries[3].attempts == 2);
  CHECK(entries[3].delay == 1s);
  CHECK(entries[3].elapsed == 10ms);
  CHECK(entries[3].status == outcome.status);
  CHECK(entries[3].action == outcome.action);
  CHECK(entries[3].failure == outcome.failure->message);
  for (const auto& entry : entries) CHECK(contains(entry.failure, "bank is down"));
}

TEST_CASE("the decision is the last thing that is told of a call", "[observer]") {
  MemoryBench bench;
  Recorder seen;
  const IdempotentConsumer old_one{"pay.v1", bench.store,
                                   [](Tx&, const Payment&) { return std::string{"text"}; }};
  const IdempotentConsumer new_one{"pay.v1", bench.store, [](Tx&, const Payment&) { return 1; }, seen};
  CHECK(old_one(Payment{}).status == Status::applied);
  CHECK(new_one.process({.id = "p-1"}, Payment{}).status == Status::duplicate);
  CHECK(seen.told() ==
        std::vector{Observed::fingerprint_not_compared, Observed::value_not_decoded, Observed::decided});
}

TEST_CASE("a message without a key is not told of, nor is a configuration error", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  Recorder seen;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), seen, each_second(2)};
  CHECK(pay(Payment{.id = ""}).status == Status::rejected);
  CHECK_THROWS_AS(static_cast<void>(pay(Payment{.delivery = 0})), ConfigurationError);
  CHECK(seen.told().empty());
}

TEST_CASE("an observer that is a variable is referred to, constant or not", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  Recorder variable;
  const IdempotentConsumer one{"one.v1", bench.store, paying(bench, starts), variable};
  CHECK(one(Payment{}).status == Status::applied);
  CHECK(variable.count(Observed::decided) == 1);

  const Gauge constant;
  const IdempotentConsumer other{"other.v1", bench.store, paying(bench, starts), constant};
  CHECK(other(Payment{}).status == Status::applied);
  CHECK(constant.told == 1);
}

TEST_CASE("an observer given as a temporary, or moved in, is the consumer's own", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  Tally tally;
  const auto told = tally.told;
  const IdempotentConsumer one{"one.v1", bench.store, paying(bench, starts), Tally{told}};
  const IdempotentConsumer other{"other.v1", bench.store, paying(bench, starts), std::move(tally)};
  CHECK(one(Payment{}).status == Status::applied);
  CHECK(other(Payment{}).status == Status::applied);
  CHECK(*told == 2);
}

TEST_CASE("two consumers share one observer", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  Meter meter;
  const IdempotentConsumer one{"one.v1", bench.store, paying(bench, starts), meter};
  const IdempotentConsumer other{"other.v1", bench.store, paying(bench, starts), meter};
  CHECK(one(Payment{}).status == Status::applied);
  CHECK(other(Payment{}).status == Status::applied);
  CHECK(meter.told == 2);
}

TEST_CASE("what an observer throws changes no outcome", "[observer]") {
  MemoryBench bench;
  int starts = 0;
  const Thrower kept;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               failing(bench, starts,
                                       [](int start) {
                                         if (start < 3) throw TransientError{"bank is down"};
                                       }),
                               Immediate{} | MaxAttempts{3}, Thrower{kept.told}};
  check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 3);
  check_outcome(pay(Payment{}), Status::duplicate, Action::acknowledge, 0);
  check_outcome(pay(Payment{.amount = 2}), Status::mismatch, Action::dead_letter, 0);
  check_outcome(pay.process({.id = "p-1", .delivery_count = 1}, Payment{}), Status::duplicate,
                Action::acknowledge, 0);
  CHECK(*kept.told == 2 * 2 + 1 + 1 + 1 + 2);
}

TEST_CASE("an observer is told on the thread of the call, by many at once", "[observer]") {
  MemoryBench bench;
  const auto tally = std::make_shared<std::atomic<int>>(0);
  std::atomic<int> elsewhere = 0;
  struct Here {
    std::shared_ptr<std::atomic<int>> told;
    std::atomic<int>* elsewhere;
    void observe(const Observation& o) const {
      ++*told;
      if (o.event.tenant != std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id())))
        ++*elsewhere;
    }
  };
  const IdempotentConsumer pay{"pay.v1", bench.store, [](Tx&, const Payment&) {}, Here{tally, &elsewhere}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const std::string me = std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id()));
      for (int i = 0; i < 50; ++i)
        static_cast<void>(pay(Payment{.id = "p-" + std::to_string(i), .tenant = me}));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(*tally == 200);
  CHECK(elsewhere == 0);
}
