// SPDX-License-Identifier: MIT
//
// What the library costs without a database: time and allocations a call, by Google Benchmark.
//
//   micro [Google Benchmark's own arguments]

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include <idem/idem.hpp>
#include <idem/metrics.hpp>

namespace {

using namespace std::chrono_literals;

thread_local std::uint64_t allocations = 0;

}  // namespace

// Not inlined, or the compiler takes free() for the wrong partner of new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

/// Counts what is allocated from here to the end of the benchmark, for each of its iterations.
class CountAllocations {
 public:
  explicit CountAllocations(benchmark::State& state) : state_{state}, before_{allocations} {}
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;
  ~CountAllocations() {
    state_.counters["allocations"] =
        benchmark::Counter(static_cast<double>(allocations - before_), benchmark::Counter::kAvgIterations);
  }

 private:
  benchmark::State& state_;
  std::uint64_t before_;
};

/// An id as long as a UUID's text, another one for each number.
void number_id(std::string& id, std::uint64_t number) {
  id.resize(36, '-');
  for (std::size_t i = id.size(); i > 20; number /= 16) id[--i] = "0123456789abcdef"[number % 16];
}
std::string id_of(std::uint64_t number) {
  std::string id;
  number_id(id, number);
  return id;
}

struct Paid {
  std::string id;
  std::string order = "order-1";
  std::int64_t cents = 1250;
};

idem::Event event_of(const Paid& m) {
  return {.tenant = "acme", .id = m.id, .fingerprint = idem::fingerprint_of(m.order, m.cents)};
}

using Store = idem::MemoryStore<>;
constexpr auto do_nothing = [](Store::Transaction&, const Paid&) {};

/// A store that holds the events 0 to `keys` - 1.
std::unique_ptr<Store> filled(std::int64_t keys) {
  auto store = std::make_unique<Store>();
  const idem::IdempotentConsumer consumer{"bench.v1", *store, do_nothing};
  Paid message{id_of(0)};
  for (std::int64_t i = 0; i < keys; ++i) {
    number_id(message.id, static_cast<std::uint64_t>(i));
    static_cast<void>(consumer(message));
  }
  return store;
}

void fingerprint_of_three_fields(benchmark::State& state) {
  const std::string order = "order-4711", currency = "EUR";
  const std::int64_t cents = 1250;
  const CountAllocations count{state};
  for (auto _ : state) benchmark::DoNotOptimize(idem::fingerprint_of(order, cents, currency));
}
BENCHMARK(fingerprint_of_three_fields);

void fingerprint_of_1_kb(benchmark::State& state) {
  const std::string text(1024, 'x');
  const CountAllocations count{state};
  for (auto _ : state) benchmark::DoNotOptimize(idem::fingerprint_of(text));
}
BENCHMARK(fingerprint_of_1_kb);

void key(benchmark::State& state) {
  const std::string tenant = "acme", consumer = "charge-order.v1", id = id_of(7);
  const CountAllocations count{state};
  for (auto _ : state) benchmark::DoNotOptimize(idem::Key{tenant, consumer, id});
}
BENCHMARK(key);

constexpr auto policy = idem::ExponentialBackoff{100ms, 5s} | idem::FullJitter{} | idem::MaxAttempts{5};

void retry_decision(benchmark::State& state) {
  idem::RetryState failure;
  const CountAllocations count{state};
  for (auto _ : state) {
    failure.failures = failure.failures % 4 + 1;
    benchmark::DoNotOptimize(policy.decide(failure));
  }
}
BENCHMARK(retry_decision);

void retry_decision_and_delay(benchmark::State& state) {
  idem::RetryState failure;
  idem::SplitMix64 engine{1};
  const CountAllocations count{state};
  for (auto _ : state) {
    failure.failures = failure.failures % 4 + 1;
    const idem::RetryDecision decision = policy.decide(failure);
    benchmark::DoNotOptimize(idem::sample(decision.lo, decision.hi, engine));
  }
}
BENCHMARK(retry_decision_and_delay);

/// A store that is new every 1,000 calls is as good as empty.
void applied_in_an_empty_store(benchmark::State& state) {
  auto store = std::make_unique<Store>();
  auto consumer =
      std::make_unique<idem::IdempotentConsumer<Store, decltype(do_nothing)>>("bench.v1", *store, do_nothing);
  const Paid message{id_of(0)};
  idem::Event event = event_of(message);
  std::uint64_t counted = 0;
  std::uint64_t number = 0;
  for (auto _ : state) {
    if (number == 1'000) {
      state.PauseTiming();
      consumer.reset();
      store = std::make_unique<Store>();
      consumer = std::make_unique<idem::IdempotentConsumer<Store, decltype(do_nothing)>>("bench.v1", *store,
                                                                                         do_nothing);
      number = 0;
      state.ResumeTiming();
    }
    number_id(event.id, number++);
    const std::uint64_t before = allocations;
    const auto outcome = consumer->process(event, message);
    counted += allocations - before;
    if (outcome.status != idem::Status::applied) state.SkipWithError("not applied");
  }
  state.counters["allocations"] =
      benchmark::Counter(static_cast<double>(counted), benchmark::Counter::kAvgIterations);
}
BENCHMARK(applied_in_an_empty_store);

constexpr std::int64_t many = 1'000'000;

void applied(benchmark::State& state) {
  static const std::unique_ptr<Store> store = filled(many);
  static std::uint64_t number = static_cast<std::uint64_t>(many);
  const idem::IdempotentConsumer consumer{"bench.v1", *store, do_nothing};
  const Paid message{id_of(0)};
  idem::Event event = event_of(message);
  const CountAllocations count{state};
  for (auto _ : state) {
    number_id(event.id, number++);
    if (consumer.process(event, message).status != idem::Status::applied) state.SkipWithError("not applied");
  }
}
BENCHMARK(applied)->Name("applied_among_1_million_keys");

void duplicate(benchmark::State& state) {
  static std::map<std::int64_t, std::unique_ptr<Store>> stores;  // the function is called several times
  std::unique_ptr<Store>& store = stores[state.range(0)];
  if (!store) store = filled(state.range(0));
  const idem::IdempotentConsumer consumer{"bench.v1", *store, do_nothing};
  const Paid message{id_of(0)};
  idem::Event event = event_of(message);
  std::uint64_t number = 0;
  const CountAllocations count{state};
  for (auto _ : state) {
    number = (number + 7919) % static_cast<std::uint64_t>(state.range(0));
    number_id(event.id, number);
    if (consumer.process(event, message).status != idem::Status::duplicate)
      state.SkipWithError("no duplicate");
  }
}
BENCHMARK(duplicate)->ArgName("keys")->Arg(1)->Arg(many);

/// As `duplicate` with one key, with the event made, and its fields hashed, in each call.
void duplicate_with_event_of(benchmark::State& state) {
  const std::unique_ptr<Store> store = filled(1);
  const idem::IdempotentConsumer consumer{"bench.v1", *store, do_nothing};
  const Paid message{id_of(0)};
  const CountAllocations count{state};
  for (auto _ : state)
    if (consumer(message).status != idem::Status::duplicate) state.SkipWithError("no duplicate");
}
BENCHMARK(duplicate_with_event_of);

/// As `duplicate` with one key: the difference is what watching costs.
void duplicate_with_metrics(benchmark::State& state) {
  const std::unique_ptr<Store> store = filled(1);
  idem::MetricsObserver metrics;
  const idem::IdempotentConsumer consumer{"bench.v1", *store, do_nothing, metrics};
  const Paid message{id_of(0)};
  const idem::Event event = event_of(message);
  const CountAllocations count{state};
  for (auto _ : state)
    if (consumer.process(event, message).status != idem::Status::duplicate)
      state.SkipWithError("no duplicate");
}
BENCHMARK(duplicate_with_metrics);

void metrics_observation(benchmark::State& state) {
  static idem::MetricsObserver metrics;
  const idem::Key name{"acme", "bench.v1", id_of(0)};
  const idem::Event event = event_of(Paid{id_of(0)});
  const CountAllocations count{state};
  for (auto _ : state)
    metrics.observe({.what = idem::Observed::decided,
                     .key = name,
                     .event = event,
                     .attempts = 1,
                     .elapsed = 1ms,
                     .status = idem::Status::applied,
                     .action = idem::Action::acknowledge});
}
BENCHMARK(metrics_observation)->Threads(1)->Threads(4);

}  // namespace

BENCHMARK_MAIN();
