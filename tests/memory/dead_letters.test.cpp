// SPDX-License-Identifier: MIT
#include <idem/memory/dead_letters.hpp>

#include <chrono>
#include <string>
#include <vector>

#include <idem/idem.hpp>

#include "conformance/dead_letters.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::dying {

namespace {

/// The store is its own sink.
struct SelfKeepingBench : MemoryBench {
  [[nodiscard]] Store& sink() noexcept { return store; }
  [[nodiscard]] std::vector<DeadLetterRecord> letters() const { return store.dead_letters(); }
};

/// The sink stands beside the store.
struct MemoryLettersBench : MemoryBench {
  MemoryDeadLetters dead{};
  [[nodiscard]] MemoryDeadLetters& sink() noexcept { return dead; }
  [[nodiscard]] std::vector<DeadLetterRecord> letters() const { return dead.records(); }
};

static_assert(DeadLetterSink<MemoryStore<>>);
static_assert(!DeadLetterSink<const MemoryStore<>>);

}  // namespace

TEST_CASE("MemoryStore as its own sink: dead letters", "[memory][dead_letters]") {
  show_all(dead_letter_behaviours<SelfKeepingBench>());
}

TEST_CASE("MemoryDeadLetters beside a store: dead letters", "[memory][dead_letters]") {
  show_all(dead_letter_behaviours<MemoryLettersBench>());
}

TEST_CASE("letters in memory go by the clock of their store", "[memory][dead_letters]") {
  const std::chrono::system_clock::time_point began{100h};
  auto now = began;
  MemoryStore<> store{{}, [&now] { return now; }};
  const IdempotentConsumer pay{
      "pay.v1", store, [](MemoryStore<>::Transaction&, const Job&) { throw PermanentError{"no"}; }, store};
  CHECK(pay(Job{.id = "j-1"}).action == Action::acknowledge);
  now += 1h;
  CHECK(pay(Job{.id = "j-1"}).action == Action::acknowledge);
  const auto letters = store.dead_letters();
  REQUIRE(letters.size() == 1);
  CHECK((letters[0].first_at == began));
  CHECK((letters[0].last_at == began + 1h));
}

}  // namespace idem::tests::dying
