// SPDX-License-Identifier: MIT
#include <idem/dead_letter.hpp>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <idem/idem.hpp>

#include "conformance/bench.hpp"
#include "conformance/dead_letters.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::dying {

namespace {

using Tx = MemoryBench::Store::Transaction;

/// Keeps what it is given; can neither be copied nor moved.
struct Drawer {
  struct Letter {
    std::string key;
    std::string payload;
    std::string failure;
    std::uint32_t attempts;
  };

  Drawer() = default;
  Drawer(const Drawer&) = delete;
  Drawer& operator=(const Drawer&) = delete;
  void record(const DeadLetter& letter) {
    letters.push_back(
        {letter.key.to_string(), std::string{letter.event.payload}, letter.failure.message, letter.attempts});
  }
  std::vector<Letter> letters = {};
};

/// Throws what it is told to.
struct Broken {
  std::function<void()> fail = [] { throw std::runtime_error{"the disk is full"}; };
  int asked = 0;
  void record(const DeadLetter&) {
    ++asked;
    fail();
  }
};

/// Moves only, and records although it is constant.
struct Chute {
  std::unique_ptr<int> recorded = std::make_unique<int>(0);
  void record(const DeadLetter&) const { ++*recorded; }
};

struct NotASink {
  void record(int) {}
};
static_assert(DeadLetterSink<Drawer> && DeadLetterSink<Chute> && DeadLetterSink<const Chute>);
static_assert(!DeadLetterSink<const Drawer> && !DeadLetterSink<NotASink> && !DeadLetterSink<int>);

void refuse(Tx&, const Job&) { throw PermanentError{"no such account"}; }

}  // namespace

TEST_CASE("a sink is given the key, the event with its payload, the failure and the attempts",
          "[dead_letter]") {
  MemoryBench bench;
  Drawer drawer;
  const IdempotentConsumer pay{"pay.v1",
                               bench.store,
                               [](Tx&, const Job&) { throw TransientError{"down"}; },
                               Immediate{} | MaxAttempts{3},
                               Redeliver{Immediate{} | MaxAttempts{1}},
                               drawer};
  const std::string payload = "the bytes";
  const auto outcome =
      pay.process(Event{.tenant = "acme", .id = "j-1", .payload = payload, .delivery_count = 1}, Job{});
  check_told(outcome, Status::rejected, Action::acknowledge);
  REQUIRE(drawer.letters.size() == 1);  // for the call, not for each attempt
  CHECK(drawer.letters[0].key == "acme/pay.v1/j-1");
  CHECK(drawer.letters[0].payload == payload);
  CHECK(drawer.letters[0].attempts == 3);
  CHECK(drawer.letters[0].failure == outcome.failure.value().message);
}

TEST_CASE("a sink is asked when the event's transaction is over, and may use the store", "[dead_letter]") {
  MemoryBench bench;
  int starts = 0;
  const IdempotentConsumer audit{"audit.v1", bench.store, paying(bench, starts)};
  struct Auditing {
    const decltype(audit)& consumer;
    Status met = Status::deferred;
    void record(const DeadLetter&) { met = consumer(Payment{.id = "a-1", .amount = 7}).status; }
  } sink{audit};
  const IdempotentConsumer pay{"pay.v1", bench.store, refuse, sink};
  check_told(pay(Job{.id = "j-1"}), Status::rejected, Action::acknowledge);
  CHECK(sink.met == Status::applied);
  CHECK(bench.sum() == 7);
}

TEST_CASE("the observer is told that a letter is recorded, and then the final action", "[dead_letter]") {
  MemoryBench bench;
  Recorder seen;
  Drawer drawer;
  const IdempotentConsumer pay{"pay.v1", bench.store, refuse, drawer, seen};
  CHECK(pay(Job{.id = "j-1"}).action == Action::acknowledge);
  CHECK(seen.told() ==
        std::vector<Observed>{Observed::attempt_failed, Observed::dead_lettered, Observed::decided});
  const auto recorded = seen.entries()[1];
  CHECK(recorded.failure == "no such account");
  CHECK(recorded.attempts == 1);
  const auto decided = seen.entries().back();
  CHECK(decided.status == Status::rejected);
  CHECK(decided.action == Action::acknowledge);
}

TEST_CASE("what cannot be recorded is brought back, later and later, and keeps its status and its cause",
          "[dead_letter]") {
  MemoryBench bench;
  Recorder seen;
  Broken broken;
  FakeTime time;
  const IdempotentConsumer pay{"pay.v1",
                               bench.store,
                               refuse,
                               broken,
                               seen,
                               time.runtime(),
                               Redeliver{LinearBackoff{10s, 10min} | NoJitter{} | MaxAttempts{9}}};
  const auto first = pay(Job{.id = "j-1", .delivery = 1});
  check_told(first, Status::rejected, Action::redeliver);
  CHECK(first.redeliver_after == 10s);
  CHECK(first.failure.value().kind == ErrorClass::permanent);
  CHECK(first.failure.value().message ==
        "no such account; its dead letter could not be recorded: the disk is full");
  CHECK(seen.told() ==
        std::vector<Observed>{Observed::attempt_failed, Observed::dead_letter_failed, Observed::decided});
  CHECK(seen.entries()[1].failure == first.failure.value().message);
  CHECK(seen.entries()[2].action == Action::redeliver);
  CHECK(seen.entries()[2].delay == 10s);
  CHECK(pay(Job{.id = "j-1", .delivery = 3}).redeliver_after == 30s);
  CHECK(broken.asked == 2);

  broken.fail = [] { throw 42; };
  const auto odd =
      pay(Job{.id = "j-1", .delivery = 99});  // Redeliver has stopped: it comes back all the same
  check_told(odd, Status::rejected, Action::redeliver);
  CHECK(odd.redeliver_after > 0s);
  CHECK(contains(odd.failure.value().message, "no std::exception"));

  broken.fail = [] {};
  check_told(pay(Job{.id = "j-1", .delivery = 100}), Status::rejected, Action::acknowledge);
}

TEST_CASE("a mismatch that cannot be recorded stays a mismatch, and comes back", "[dead_letter]") {
  MemoryBench bench;
  Broken broken;
  const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, {}), broken};
  CHECK(pay(Job{.id = "good"}).status == Status::applied);
  CHECK(broken.asked == 0);
  const auto outcome = pay(Job{.id = "good", .amount = 2});
  check_told(outcome, Status::mismatch, Action::redeliver);
  CHECK(outcome.failure.value().code == code::mismatch);
}

TEST_CASE("a sink that is set up wrongly stops the worker, and in a batch is an outcome", "[dead_letter]") {
  MemoryBench bench;
  Recorder seen;
  Broken broken{[] { throw ConfigurationError{"the table is missing"}; }};
  const std::string why = "no";
  const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), broken, seen};
  CHECK_THROWS_AS(pay(Job{.id = "j-1"}), ConfigurationError);
  CHECK(seen.count(Observed::decided) == 0);
  CHECK_THROWS_AS(pay.process_batch(std::vector<Job>{{.id = "j-1"}, {.id = "good"}}), ConfigurationError);

  // Once something is decided, it is told for each message.
  const auto undone = pay.process_batch(std::vector<Job>{{.id = "good"}, {.id = "j-1"}, {.id = "j-2"}});
  REQUIRE(undone.outcomes.size() == 3);
  CHECK(undone.outcomes[0].status == Status::applied);
  for (const std::size_t i : {1U, 2U}) {
    check_told(undone.outcomes[i], Status::deferred, Action::redeliver);
    CHECK(undone.outcomes[i].failure.value().kind == ErrorClass::configuration);
  }
  const std::string nothing;
  const IdempotentConsumer calm{"pay.v1", bench.store, dying_of(bench, nothing), broken};
  const auto together =
      calm.process_batch(std::vector<Job>{{.id = "good", .amount = 2}, {.id = "j-3"}, {.id = "j-4"}});
  REQUIRE(together.outcomes.size() == 3);
  check_told(together.outcomes[0], Status::deferred, Action::redeliver);
  CHECK(together.outcomes[0].failure.value().kind == ErrorClass::configuration);
  CHECK(together.outcomes[1].status == Status::applied);
  CHECK(together.outcomes[2].status == Status::applied);
}

TEST_CASE("a batch stops an ordering key at what could not be recorded, in whichever transaction the rest is",
          "[dead_letter]") {
  MemoryBench bench;
  Broken broken;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               [&](Tx&, const Job& job) {
                                 ++starts;
                                 if (job.id == "5") throw PermanentError{"no"};
                               },
                               broken};
  std::vector<Job> jobs;  // more than share a transaction
  for (int i = 0; i < 600; ++i)
    jobs.push_back({.id = std::to_string(i), .group = i % 2 == 1 ? "odd" : "even"});
  const auto report = pay.process_batch(jobs);
  REQUIRE(report.outcomes.size() == 600);
  check_told(report.outcomes[5], Status::rejected, Action::redeliver);
  for (std::size_t i = 0; i < 600; ++i) {
    CAPTURE(i);
    if (i % 2 == 0 || i < 5) CHECK(report.outcomes[i].status == Status::applied);
    if (i % 2 == 1 && i > 5) CHECK(report.outcomes[i].failure.value().code == code::held_back);
  }
  CHECK(first_unacknowledged(report) == 5U);
  CHECK(pay.name() == "pay.v1");
}

TEST_CASE("a sink given as a variable is referred to, and any other is moved in", "[dead_letter]") {
  MemoryBench bench;
  Drawer drawer;  // could not be copied
  const IdempotentConsumer referring{"a.v1", bench.store, refuse, drawer};
  CHECK(referring(Job{.id = "j-1"}).action == Action::acknowledge);
  CHECK(drawer.letters.size() == 1);

  Chute chute;
  const int& recorded = *chute.recorded;
  const IdempotentConsumer owning{"b.v1", bench.store, refuse, std::move(chute)};
  CHECK(owning(Job{.id = "j-1"}).action == Action::acknowledge);
  CHECK(recorded == 1);

  const Chute constant;
  const IdempotentConsumer sharing{"c.v1", bench.store, refuse, constant};
  CHECK(sharing(Job{.id = "j-1"}).action == Action::acknowledge);
  CHECK(*constant.recorded == 1);
}

}  // namespace idem::tests::dying
