// SPDX-License-Identifier: MIT
#include <idem/testing/faulty_store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <idem/idem.hpp>
#include <idem/testing/manual_clock.hpp>

#include "support/catch.hpp"
#include "testing/contract.hpp"

using namespace std::chrono_literals;

namespace idem::tests::mishaps {

namespace {

using testing::Crash;
using testing::FaultyStore;
using testing::ManualClock;
using testing::Mishap;
using testing::planned;
using testing::Verb;

struct Ledger {
  std::int64_t sum = 0;
};
using Inner = MemoryStore<Ledger>;
using Store = FaultyStore<Inner>;

static_assert(TransactionalStore<Store> && BatchStore<Store> && LeaseStore<Store> && CountingStore<Store>);

/// Lends only.
struct Lender {
  Acquired acquire(const Claim&, std::optional<Duration>) { return Grant{}; }
  Held extend(const Claim&, const Grant&, Duration) { return Kept{}; }
  Held complete(const Claim&, const Grant&, const StoredValue&) { return Kept{}; }
  Held release(const Claim&, const Grant&) { return Kept{}; }
};
static_assert(LeaseStore<FaultyStore<Lender>> && !TransactionalStore<FaultyStore<Lender>>);
static_assert(!CountingStore<FaultyStore<Lender>> && !BatchStore<FaultyStore<Lender>>);

/// One worker whose store has mishaps, and time that only it moves.
struct Worker {
  explicit Worker(testing::Mishaps mishaps) : store{inner, std::move(mishaps)} {}
  ManualClock clock{};
  Inner inner{Ledger{}, clock.store_clock()};
  Store store;

  auto book(std::uint32_t attempts = 1) {
    return IdempotentConsumer{"book.v1", store,
                              [](Store::Transaction& tx, const int& n) { tx.state().sum += n; },
                              Immediate{} | MaxAttempts{attempts}, clock.runtime()};
  }
  auto mail() {
    return IdempotentConsumer{"mail.v1", store,
                              [this](Lease& lease, const int&) { fences.push_back(lease.token()); },
                              ConsumerOptions{.lease = 10s, .heartbeat = false}, clock.runtime()};
  }
  std::vector<std::uint64_t> fences = {};
};

const Event event{.id = "e-1", .delivery_count = 1};

/// A store with no mishaps keeps the contract of the inner one.
struct QuietBench {
  using Store = mishaps::Store;
  ManualClock clock{};
  Inner inner{Ledger{}, clock.store_clock()};
  Store store{inner, {}};
  void write(Store::Transaction& tx, std::int64_t n) const { tx.state().sum += n; }
  [[nodiscard]] std::int64_t seen(Store::Transaction& tx) const { return tx.state().sum; }
  [[nodiscard]] std::int64_t sum() const { return inner.state().sum; }
  void advance(Duration span) { clock.advance(span); }
};

}  // namespace

TEST_CASE("a faulty store without mishaps keeps the contract of the store behind it", "[testing]") {
  show_contract([] { return QuietBench{}; });
  CHECK(testing::store_checks<QuietBench>().size() >= 35);
}

TEST_CASE("a COMMIT that arrived and whose answer is lost is found out", "[testing]") {
  Worker worker{planned(Verb::apply, {Mishap::answer_lost})};
  const auto outcome = worker.book().process(event, 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 1);
  CHECK(worker.inner.state().sum == 1);
}

TEST_CASE("a COMMIT that never arrived is found out, and the effect made again", "[testing]") {
  Worker worker{planned(Verb::apply, {Mishap::request_lost})};
  const auto outcome = worker.book().process(event, 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 2);
  CHECK(worker.inner.state().sum == 1);
}

TEST_CASE("a store that is out of reach, or busy, costs a delivery and no event", "[testing]") {
  Worker worker{planned(Verb::apply, {Mishap::unreachable, Mishap::busy})};
  CHECK(worker.book().process(event, 1).status == Status::deferred);
  CHECK(worker.book().process(event, 1).status == Status::in_progress);
  CHECK(worker.book().process(event, 1).status == Status::applied);
  CHECK(worker.inner.state().sum == 1);
}

TEST_CASE("a crash ends the call, and all of the process until it is started again", "[testing]") {
  for (const Mishap crash : {Mishap::crash_before, Mishap::crash_inside, Mishap::crash_after}) {
    Worker worker{planned(Verb::apply, {crash})};
    const auto book = worker.book();
    CHECK_THROWS_AS(book.process(event, 1), Crash);
    CHECK(worker.inner.state().sum == (crash == Mishap::crash_after ? 1 : 0));
    CHECK_THROWS_AS(book.process(event, 1), Crash);
    worker.store.restart();
    CHECK(book.process(event, 1).status ==
          (crash == Mishap::crash_after ? Status::duplicate : Status::applied));
    CHECK(worker.inner.state().sum == 1);
  }
}

TEST_CASE("a handler can crash its process; its effect is not there and its lease stays until it ends",
          "[testing]") {
  Worker worker{{}};
  const IdempotentConsumer crashing{
      "mail.v1", worker.store, [&](Lease&, const int&) { worker.store.crash(); },
      ConsumerOptions{.lease = 10s, .heartbeat = false}, worker.clock.runtime()};
  CHECK_THROWS_AS(crashing.process(event, 1), Crash);
  worker.store.restart();
  const auto mail = worker.mail();
  CHECK(mail.process(event, 1).status == Status::in_progress);
  worker.clock.advance(10s);
  CHECK(mail.process(event, 1).status == Status::applied);
}

TEST_CASE("a lease whose answer is lost is found again, one that was never asked for is taken", "[testing]") {
  Worker worker{planned(Verb::acquire, {Mishap::answer_lost})};
  const auto outcome = worker.mail().process(event, 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(worker.fences == std::vector<std::uint64_t>{1});
  Worker other{planned(Verb::acquire, {Mishap::request_lost})};
  CHECK(other.mail().process(event, 1).status == Status::applied);
  CHECK(other.fences == std::vector<std::uint64_t>{1});
}

TEST_CASE("a completion whose answer is lost is repeated", "[testing]") {
  for (const Mishap mishap : {Mishap::answer_lost, Mishap::request_lost}) {
    Worker worker{planned(Verb::complete, {mishap})};
    CHECK(worker.mail().process(event, 1).status == Status::applied);
    CHECK(worker.fences.size() == 1);
    CHECK(worker.mail().process(event, 1).status == Status::duplicate);
  }
}

TEST_CASE("a batch whose COMMIT is in doubt is found out, event by event", "[testing]") {
  const std::vector<Event> events{{.id = "a"}, {.id = "b"}};
  const std::vector<int> amounts{1, 10};
  for (const Mishap mishap : {Mishap::answer_lost, Mishap::request_lost, Mishap::unreachable}) {
    Worker worker{planned(Verb::apply_batch, {mishap})};
    const auto report = worker.book().process_batch(events, amounts);
    CHECK(report.all_acknowledged());
    CHECK(worker.inner.state().sum == 11);
  }
}

TEST_CASE("seeded mishaps are the same for a seed, and none at nought percent", "[testing]") {
  auto one = testing::seeded(5, 50);
  auto two = testing::seeded(5, 50);
  auto never = testing::seeded(5, 0);
  int mishaps = 0;
  for (int i = 0; i < 1000; ++i) {
    const Mishap met = one(Verb::apply);
    CHECK(met == two(Verb::apply));
    CHECK(never(Verb::apply) == Mishap::none);
    if (met != Mishap::none) ++mishaps;
  }
  CHECK(mishaps > 400);
  CHECK(mishaps < 600);
}

}  // namespace idem::tests::mishaps
