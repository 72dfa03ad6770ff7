// SPDX-License-Identifier: MIT
#include <idem/consumer.hpp>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "conformance/consumer.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

/// What TransactionalStore asks, and nothing more: whoever writes a store starts from this.
class LeastStore {
 public:
  class Transaction {
   public:
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    void add(const Payment& p) { sum_ += p.amount; }

   private:
    friend LeastStore;
    explicit Transaction(std::int64_t sum) : sum_{sum} {}
    std::int64_t sum_;
  };

  LeastStore() = default;
  LeastStore(const LeastStore&) = delete;
  LeastStore& operator=(const LeastStore&) = delete;

  Applied apply(const Claim& claim, Effect<Transaction> effect) {
    const std::lock_guard lock{mutex_};
    if (const auto row = rows_.find(claim.key); row != rows_.end()) return row->second;
    Transaction tx{sum};
    try {
      rows_.emplace(claim.key, Found{.fingerprint = claim.fingerprint, .value = effect(tx)});
    } catch (...) {
      return detail::handler_failure();
    }
    sum = tx.sum_;
    return Committed{};
  }

  std::int64_t sum = 0;

 private:
  std::mutex mutex_;
  std::map<Key, Found> rows_;
};
static_assert(TransactionalStore<LeastStore>);

/// Answers as it is told, and keeps what it was asked.
class ScriptedStore {
 public:
  class Transaction {};
  using Answer = std::function<Applied(const Claim&, Effect<Transaction>)>;

  Applied apply(const Claim& claim, Effect<Transaction> effect) {
    asked.push_back({claim.doubted, claim.on_concurrent, claim.wait_limit});
    REQUIRE_FALSE(answers.empty());
    const Answer answer = std::move(answers.front());
    answers.pop_front();
    return answer(claim, effect);
  }

  /// Runs the effect, and answers `then`, or with the failure when the effect throws.
  [[nodiscard]] static Answer run(Applied then) {
    return [then](const Claim&, Effect<Transaction> effect) -> Applied {
      Transaction tx;
      try {
        effect(tx);
      } catch (...) {
        return detail::handler_failure();
      }
      return then;
    };
  }
  [[nodiscard]] static Answer say(Applied answer) {
    return [answer](const Claim&, Effect<Transaction>) { return answer; };
  }

  struct Asked {
    std::optional<ClaimToken> doubted;
    Concurrent on_concurrent;
    Duration wait_limit;
  };
  std::deque<Answer> answers = {};
  std::vector<Asked> asked = {};
};
static_assert(TransactionalStore<ScriptedStore>);

[[nodiscard]] ClaimToken token(int n) {
  ClaimToken made;
  made.bytes[0] = static_cast<std::byte>(n);
  return made;
}
[[nodiscard]] InDoubt doubt(int n) {
  return {token(n), {ErrorClass::in_doubt, std::string{code::in_doubt}, "connection reset"}};
}
[[nodiscard]] Failed outage() {
  return {.failure = {ErrorClass::reconnect, "08006", "no server"}, .fault = Fault::store};
}

using Memory = MemoryStore<Ledger>;
void add(Memory::Transaction& tx, const Payment& p) { tx.state().sum += p.amount; }
void add(LeastStore::Transaction& tx, const Payment& p) { tx.add(p); }

}  // namespace

TEST_CASE("a consumer on a MemoryStore: keys", "[consumer]") { show_all(key_behaviours<MemoryBench>()); }
TEST_CASE("a consumer on a MemoryStore: fingerprints and values", "[consumer]") {
  show_all(fingerprint_behaviours<MemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: failures", "[consumer]") {
  show_all(failure_behaviours<MemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: concurrency", "[consumer]") {
  show_all(concurrency_behaviours<MemoryBench>());
}

// Handlers and parts, in every form.

TEST_CASE("one generic handler serves every store", "[consumer]") {
  constexpr auto handler = [](auto& tx, const Payment& p) { add(tx, p); };
  Memory memory;
  LeastStore least;
  const IdempotentConsumer on_memory{"pay.v1", memory, handler};
  const IdempotentConsumer on_least{"pay.v1", least, handler};
  CHECK(on_memory(Payment{.amount = 3}).status == Status::applied);
  CHECK(on_least(Payment{.amount = 3}).status == Status::applied);
  CHECK(on_least(Payment{.amount = 3}).status == Status::duplicate);
  CHECK(on_least(Payment{.amount = 4}).status == Status::mismatch);
  CHECK(memory.state().sum == 3);
  CHECK(least.sum == 3);
}

TEST_CASE("whatever can be called is a handler", "[consumer]") {
  LeastStore store;
  int n = 0;
  const auto next = [&n] { return Payment{.id = "p-" + std::to_string(++n)}; };

  void (*pointer)(LeastStore::Transaction&, const Payment&) = &add;
  const IdempotentConsumer by_pointer{"pay.v1", store, pointer};
  CHECK(by_pointer(next()).status == Status::applied);

  const IdempotentConsumer by_member{"pay.v1", store, &LeastStore::Transaction::add};
  CHECK(by_member(next()).status == Status::applied);

  struct Service {
    int calls = 0;
    void pay(LeastStore::Transaction& tx, const Payment& p) {
      ++calls;
      tx.add(p);
    }
  } service;
  const IdempotentConsumer by_service{
      "pay.v1", store, [&service](LeastStore::Transaction& tx, const Payment& p) { service.pay(tx, p); }};
  CHECK(by_service(next()).status == Status::applied);
  CHECK(service.calls == 1);

  const IdempotentConsumer by_function{"pay.v1", store,
                                       std::function<int(LeastStore::Transaction&, const Payment&)>{
                                           [](LeastStore::Transaction& tx, const Payment& p) {
                                             tx.add(p);
                                             return 5;
                                           }}};
  CHECK(by_function(next()).value == 5);

  auto owned = std::make_unique<int>(7);
  const IdempotentConsumer by_owner{"pay.v1", store,
                                    [owned = std::move(owned)](LeastStore::Transaction& tx, Payment p) {
                                      tx.add(p);
                                      return *owned;
                                    }};
  CHECK(by_owner(next()).value == 7);

  const auto named = [](LeastStore::Transaction& tx, const auto& p) { tx.add(p); };
  const IdempotentConsumer by_lvalue{"pay.v1", store, named};
  CHECK(by_lvalue(next()).status == Status::applied);
  CHECK(store.sum == n);
}

TEST_CASE("a handler may return a reference or a const value", "[consumer]") {
  LeastStore store;
  static const std::string text = "kept";
  const IdempotentConsumer consumer{
      "pay.v1", store, [](LeastStore::Transaction&, const Payment&) -> const std::string& { return text; }};
  const auto outcome = consumer(Payment{});
  static_assert(std::is_same_v<decltype(outcome), const Outcome<std::string>>);
  CHECK(outcome.value == "kept");
  CHECK(consumer(Payment{}).value == "kept");
}

TEST_CASE("one consumer handles messages of several types", "[consumer]") {
  LeastStore store;
  const IdempotentConsumer consumer{"pay.v1", store, [](LeastStore::Transaction& tx, const auto& m) {
                                      if constexpr (std::is_same_v<decltype(m), const Payment&>)
                                        tx.add(m);
                                      else
                                        return static_cast<int>(m.size());
                                    }};
  CHECK(consumer(Payment{}).status == Status::applied);
  CHECK(consumer.process({.id = "text"}, std::string{"four"}).value == 4);
}

namespace {

/// A consumer with the parts in the order given, and what shows that each of them is in force.
template <class... Parts>
void check_parts(FakeTime& time, Recorder& seen, Parts&&... parts) {
  LeastStore store;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](LeastStore::Transaction&, const Payment&) {
                                 if (++starts == 2 || starts > 3) throw TransientError{"again"};
                               },
                               std::forward<Parts>(parts)...};
  const auto slept = time.slept().size();
  const auto told = seen.count(Observed::decided);
  CHECK(pay(Payment{}).status == Status::applied);
  CHECK(pay(Payment{.amount = 2}).action == Action::acknowledge);                 // options
  CHECK(pay(Payment{.id = "p-2"}).attempts == 2);                                 // retry policy
  CHECK(time.slept().size() == slept + 1);                                        // runtime
  CHECK(pay(Payment{.id = "p-3"}).redeliver_after == 7s);                         // redeliver
  CHECK(pay(Payment{.id = "p-3", .delivery = 3}).action == Action::dead_letter);  // redeliver
  CHECK(seen.count(Observed::decided) == told + 5);                               // observer
}

template <class... Parts>
void check_rotations(FakeTime& time, Recorder& seen, const Parts&... parts) {
  const auto rotate = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto all = std::tie(parts..., parts...);
    const auto take = [&]<std::size_t From>(std::integral_constant<std::size_t, From>) {
      const auto given = []<class T>(const T& part) -> decltype(auto) {
        if constexpr (requires { part.get(); })
          return part.get();
        else
          return T{part};
      };
      check_parts(time, seen, given(std::get<From + I>(all))...);
    };
    (take(std::integral_constant<std::size_t, I>{}), ...);
  };
  rotate(std::index_sequence_for<Parts...>{});
}

}  // namespace

TEST_CASE("parts come in any order", "[consumer]") {
  FakeTime time;
  Recorder seen;
  const auto policy = ConstantBackoff{1ms} | NoJitter{} | MaxAttempts{2};
  const Redeliver later{ConstantBackoff{7s} | NoJitter{} | MaxAttempts{3}};
  const ConsumerOptions options{.on_mismatch = Mismatch::acknowledge};
  check_rotations(time, seen, policy, later, std::ref(seen), options, time.runtime());
  check_rotations(time, seen, time.runtime(), options, std::ref(seen), later, policy);
}

TEST_CASE("parts are variables, constants or temporaries", "[consumer]") {
  FakeTime time;
  Recorder seen;
  auto policy = ConstantBackoff{1ms} | NoJitter{} | MaxAttempts{2};
  constexpr auto constant = ConstantBackoff{1ms} | NoJitter{} | MaxAttempts{2};
  Redeliver later{ConstantBackoff{7s} | NoJitter{} | MaxAttempts{3}};
  const Redeliver constant_later = later;
  ConsumerOptions options{.on_mismatch = Mismatch::acknowledge};
  const ConsumerOptions constant_options = options;
  Runtime runtime = time.runtime();
  const Runtime constant_runtime = runtime;
  check_parts(time, seen, policy, later, options, runtime, seen);
  check_parts(time, seen, constant, constant_later, constant_options, constant_runtime, seen);
  check_parts(time, seen, std::move(policy), std::move(later), std::move(options), std::move(runtime), seen);
  check_parts(time, seen, std::move(constant), std::move(constant_later), std::move(constant_options),
              std::move(constant_runtime), seen);
}

TEST_CASE("policies and options are copied: what becomes of the variables does not matter", "[consumer]") {
  LeastStore store;
  auto options = std::make_unique<ConsumerOptions>(ConsumerOptions{.on_mismatch = Mismatch::acknowledge});
  auto policy = std::make_unique<MaxAttempts>(3);
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", store,
                               [&](LeastStore::Transaction&, const Payment&) {
                                 if (++starts % 3 != 0) throw TransientError{"again"};
                               },
                               *options, *policy};
  options->on_mismatch = Mismatch::dead_letter;
  *policy = MaxAttempts{1};
  options.reset();
  policy.reset();
  CHECK(pay(Payment{}).attempts == 3);
  CHECK(pay(Payment{.amount = 2}).action == Action::acknowledge);
}

namespace {

[[nodiscard]] auto make_pay(LeastStore& store, Recorder& seen) {
  return IdempotentConsumer{"pay.v1", store, [](auto& tx, const Payment& p) { add(tx, p); }, MaxAttempts{2},
                            seen};
}

struct Worker {
  LeastStore store;
  Recorder seen;
  decltype(make_pay(std::declval<LeastStore&>(), std::declval<Recorder&>())) pay{make_pay(store, seen)};
};
static_assert(!std::is_copy_constructible_v<decltype(Worker::pay)>);

}  // namespace

TEST_CASE("a consumer is a member of a class, its type named through the function that makes it",
          "[consumer]") {
  Worker worker;
  CHECK(worker.pay(Payment{}).status == Status::applied);
  CHECK(worker.pay(Payment{}).status == Status::duplicate);
  CHECK(worker.seen.count(Observed::decided) == 2);
}

TEST_CASE("a consumer lives on the heap, its template arguments spelled out", "[consumer]") {
  LeastStore store;
  using Handler = void (*)(LeastStore::Transaction&, const Payment&);
  const auto pay = std::make_unique<IdempotentConsumer<LeastStore, Handler, MaxAttempts>>(
      std::string{"pay.v1"}, store, static_cast<Handler>(&add), MaxAttempts{2});
  CHECK((*pay)(Payment{}).status == Status::applied);
}

TEST_CASE("an injected engine is used by all threads of a consumer, by one at a time", "[consumer]") {
  LeastStore store;
  int draws = 0;  // no atomic: the consumer's lock guards it
  const IdempotentConsumer pay{
      "pay.v1", store, [](LeastStore::Transaction&, const Payment&) { throw TransientError{"again"}; },
      Redeliver{ConstantBackoff{1s} | FullJitter{}}, Runtime{.engine = [&draws] {
        ++draws;
        return std::uint64_t{1};
      }}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) static_cast<void>(pay(Payment{}));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(draws == 400);
}

// A COMMIT whose answer was lost.

namespace {

struct DoubtBench {
  ScriptedStore store{};
  FakeTime time{};
  Recorder seen{};
  int starts = 0;

  /// Handles one event of amount 1 by a handler that returns its start number.
  template <class... Parts>
  [[nodiscard]] auto handle(Parts... parts) {
    const IdempotentConsumer pay{
        "pay.v1",       store, [this](ScriptedStore::Transaction&, const Payment&) { return ++starts; },
        time.runtime(), seen,  parts...};
    return pay(Payment{});
  }
};

}  // namespace

TEST_CASE("a doubted commit that is found by its token is applied, with the value of its own attempt",
          "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::run(doubt(1)),
                         ScriptedStore::say(Found{token(1), fingerprint_of(1), std::string{"1"}})};
  const auto outcome = bench.handle(ConsumerOptions{.on_concurrent = Concurrent::defer});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.action == Action::acknowledge);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.value == 1);
  CHECK_FALSE(outcome.replayed);
  CHECK(outcome.attempts == 1);
  REQUIRE(bench.store.asked.size() == 2);
  CHECK_FALSE(bench.store.asked[0].doubted);
  CHECK(bench.store.asked[1].doubted == token(1));
  CHECK(bench.store.asked[1].on_concurrent == Concurrent::wait);
  CHECK(bench.store.asked[1].wait_limit == 5s);
  CHECK(bench.seen.count(Observed::in_doubt) == 1);
}

TEST_CASE("a doubted commit that did not happen starts the handler again, even with one attempt allowed",
          "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::run(doubt(1)), ScriptedStore::run(Committed{})};
  const auto outcome = bench.handle(MaxAttempts{1});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 2);
  CHECK(outcome.value == 2);
}

TEST_CASE("a second doubt that comes to nothing counts, and its new claim is rolled back", "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::run(doubt(1)), ScriptedStore::run(doubt(2)),
                         ScriptedStore::run(Committed{})};
  const auto outcome = bench.handle(MaxAttempts{1}, each_second(1));
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.redeliver_after > 0s);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 2);
  CHECK_FALSE(outcome.value);
  CHECK(bench.starts == 2);
}

TEST_CASE("a second doubt waits as the policy says before the handler starts again", "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::run(doubt(1)), ScriptedStore::run(doubt(2)),
                         ScriptedStore::run(Committed{}), ScriptedStore::run(Committed{})};
  const auto outcome = bench.handle(ConstantBackoff{10ms} | NoJitter{} | MaxAttempts{3});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.attempts == 3);
  CHECK(bench.time.slept() == std::vector<Duration>{10ms});
  REQUIRE(bench.store.asked.size() == 4);
  CHECK_FALSE(bench.store.asked[3].doubted);
  CHECK(bench.store.asked[3].wait_limit == ConsumerOptions{}.wait_limit);
}

TEST_CASE("a doubted event that somebody else committed is decided like any other", "[consumer]") {
  DoubtBench same;
  same.store.answers = {ScriptedStore::run(doubt(1)),
                        ScriptedStore::say(Found{token(9), fingerprint_of(1), std::string{"77"}})};
  const auto duplicate = same.handle();
  CHECK(duplicate.status == Status::duplicate);
  CHECK(duplicate.resolved_in_doubt);
  CHECK(duplicate.value == 77);
  CHECK(duplicate.replayed);

  DoubtBench other;
  other.store.answers = {ScriptedStore::run(doubt(1)),
                         ScriptedStore::say(Found{token(9), fingerprint_of(2), {}})};
  const auto mismatch = other.handle();
  CHECK(mismatch.status == Status::mismatch);
  CHECK(mismatch.resolved_in_doubt);
  CHECK_FALSE(mismatch.value);
}

TEST_CASE("a doubt that cannot be resolved in its time is neither acknowledged nor dead-lettered",
          "[consumer]") {
  DoubtBench held;
  held.store.answers = {ScriptedStore::run(doubt(1)), ScriptedStore::say(Busy{})};
  const auto busy = held.handle(each_second(1));
  CHECK(busy.status == Status::in_progress);
  CHECK(busy.action == Action::redeliver);
  CHECK(busy.redeliver_after >= ConsumerOptions{}.wait_limit);
  CHECK(busy.failure->code == code::in_doubt);
  CHECK_FALSE(busy.resolved_in_doubt);
  CHECK_FALSE(busy.value);

  DoubtBench down;
  down.store.answers = {ScriptedStore::run(doubt(1))};
  for (int i = 0; i < 1'000; ++i) down.store.answers.push_back(ScriptedStore::say(outage()));
  const auto gone = down.handle(each_second(1));
  CHECK(gone.status == Status::in_progress);
  CHECK(gone.action == Action::redeliver);
  CHECK(gone.failure->code == code::in_doubt);
  CHECK(gone.attempts == 1);
  Duration slept{};
  for (const Duration one : down.time.slept()) slept += one;
  CHECK(slept == 5s);
}

TEST_CASE("an outage while a doubt is looked into is waited out", "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::run(doubt(1)), ScriptedStore::say(outage()),
                         ScriptedStore::say(outage()),
                         ScriptedStore::say(Found{token(1), fingerprint_of(1), std::string{"1"}})};
  const auto outcome = bench.handle();
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(outcome.value == 1);
  CHECK(bench.time.slept().size() == 2);
}

TEST_CASE("a stop leaves a doubt in progress", "[consumer]") {
  DoubtBench bench;
  std::stop_source stop;
  bench.store.answers = {ScriptedStore::run(doubt(1))};
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               [&](ScriptedStore::Transaction&, const Payment&) { stop.request_stop(); }};
  const auto outcome = pay(Payment{}, stop.get_token());
  CHECK(outcome.status == Status::in_progress);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.failure->code == code::in_doubt);
}

TEST_CASE("an outage of the store is retried, then deferred, and never the message's fault", "[consumer]") {
  DoubtBench bench;
  for (int i = 0; i < 3; ++i) bench.store.answers.push_back(ScriptedStore::say(outage()));
  const auto outcome = bench.handle(Immediate{} | MaxAttempts{3}, Redeliver{Intervals{1min} | NoJitter{}});
  check_outcome(outcome, Status::deferred, Action::redeliver, 0);
  CHECK(outcome.failure->kind == ErrorClass::reconnect);
  CHECK(bench.store.answers.empty());

  DoubtBench after_work;
  after_work.store.answers = {ScriptedStore::run(outage())};
  const IdempotentConsumer pay{"pay.v1", after_work.store, [](ScriptedStore::Transaction&, const Payment&) {},
                               Redeliver{Intervals{1min} | NoJitter{}}};
  const auto late = pay(Payment{.delivery = 1'000});
  check_outcome(late, Status::deferred, Action::redeliver, 1);
  CHECK(late.redeliver_after == 1min);
}

TEST_CASE("a failure that the store calls configuration is thrown", "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {
      ScriptedStore::say(Failed{.failure = {ErrorClass::configuration, "42P01", "no table"}})};
  CHECK_THROWS_AS(static_cast<void>(bench.handle()), ConfigurationError);
}

TEST_CASE("the terms of a claim are those of the options", "[consumer]") {
  DoubtBench bench;
  bench.store.answers = {ScriptedStore::say(Busy{})};
  static_cast<void>(bench.handle(ConsumerOptions{.on_concurrent = Concurrent::defer, .wait_limit = 3s}));
  REQUIRE(bench.store.asked.size() == 1);
  CHECK(bench.store.asked[0].on_concurrent == Concurrent::defer);
  CHECK(bench.store.asked[0].wait_limit == 3s);
  CHECK_FALSE(bench.store.asked[0].doubted);
}
