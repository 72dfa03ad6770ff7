// SPDX-License-Identifier: MIT
#include <idem/memory/store.hpp>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <idem/consumer.hpp>

#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;

namespace {

struct Note {
  std::string id = "n-1";
};
Event event_of(const Note& note) { return {.id = note.id}; }

struct Notes {
  std::vector<std::string> ids = {};
};
using Store = MemoryStore<Notes>;

static_assert(TransactionalStore<MemoryStore<>>);
static_assert(TransactionalStore<Store>);
static_assert(!std::is_copy_constructible_v<Store>);
static_assert(!std::is_copy_constructible_v<Store::Transaction>);

void keep(Store::Transaction& tx, const Note& note) { tx.state().ids.push_back(note.id); }

}  // namespace

TEST_CASE("a new store holds the state it was given, and no keys", "[memory]") {
  const Store empty;
  CHECK(empty.state().ids.empty());
  CHECK(empty.size() == 0);
  const Store filled{Notes{{"a", "b"}}};
  CHECK(filled.state().ids == std::vector<std::string>{"a", "b"});
  CHECK(filled.size() == 0);
  const MemoryStore deduced{std::string{"text"}};
  CHECK(deduced.state() == "text");
}

TEST_CASE("a state needs no default", "[memory]") {
  struct Counter {
    explicit Counter(int start) : n{start} {}
    int n;
  };
  MemoryStore<Counter> store{Counter{5}};
  const IdempotentConsumer count{"count.v1", store, [](auto& tx, const Note&) { ++tx.state().n; }};
  CHECK(count(Note{}).status == Status::applied);
  CHECK(store.state().n == 6);
}

TEST_CASE("what a handler changes is published when it returns, and dropped when it throws", "[memory]") {
  Store store;
  std::vector<std::string> during{"not looked"};
  const IdempotentConsumer good{"good.v1", store, [&](Store::Transaction& tx, const Note& note) {
                                  keep(tx, note);
                                  during = store.state().ids;
                                }};
  const IdempotentConsumer bad{"bad.v1", store, [](Store::Transaction& tx, const Note& note) {
                                 keep(tx, note);
                                 throw PermanentError{"no"};
                               }};
  CHECK(good(Note{"a"}).status == Status::applied);
  CHECK(during.empty());
  CHECK(store.state().ids == std::vector<std::string>{"a"});
  CHECK(bad(Note{"b"}).status == Status::rejected);
  CHECK(store.state().ids == std::vector<std::string>{"a"});
  CHECK(store.size() == 1);
}

TEST_CASE("a copy of the state is a copy", "[memory]") {
  Store store{Notes{{"a"}}};
  Notes copy = store.state();
  copy.ids.clear();
  CHECK(store.state().ids.size() == 1);
}

TEST_CASE("a consumer called inside a handler on the same store is a configuration error, whatever its event",
          "[memory]") {
  Store store;
  int inner_starts = 0;
  const IdempotentConsumer same_name{"outer.v1", store,
                                     [&](Store::Transaction&, const Note&) { ++inner_starts; }};
  const IdempotentConsumer other_name{"inner.v1", store,
                                      [&](Store::Transaction&, const Note&) { ++inner_starts; },
                                      Immediate{} | MaxAttempts{5}};
  const IdempotentConsumer outer{"outer.v1", store, [&](Store::Transaction& tx, const Note& note) {
                                   keep(tx, note);
                                   if (note.id == "same event") static_cast<void>(same_name(note));
                                   if (note.id == "other event") static_cast<void>(same_name(Note{"x"}));
                                   if (note.id == "other consumer") static_cast<void>(other_name(note));
                                 }};
  for (const std::string id : {"same event", "other event", "other consumer"}) {
    CAPTURE(id);
    CHECK_THROWS_AS(static_cast<void>(outer(Note{id})), ConfigurationError);
    CHECK(store.size() == 0);
    CHECK(store.state().ids.empty());
  }
  CHECK(inner_starts == 0);
  CHECK(outer(Note{"plain"}).status == Status::applied);
  CHECK(same_name(Note{"same event"}).status == Status::applied);
}

TEST_CASE("a handler may call a consumer on another store, but not back again", "[memory]") {
  Store one;
  Store other;
  const IdempotentConsumer back{"back.v1", one,
                                [](Store::Transaction& tx, const Note& note) { keep(tx, note); }};
  const IdempotentConsumer there{"there.v1", other, [&](Store::Transaction& tx, const Note& note) {
                                   keep(tx, note);
                                   if (note.id == "back") static_cast<void>(back(note));
                                 }};
  const IdempotentConsumer outer{"outer.v1", one, [&](Store::Transaction& tx, const Note& note) {
                                   keep(tx, note);
                                   static_cast<void>(there(note));
                                 }};
  CHECK(outer(Note{"there"}).status == Status::applied);
  CHECK(one.size() == 1);
  CHECK(other.size() == 1);
  CHECK_THROWS_AS(static_cast<void>(outer(Note{"back"})), ConfigurationError);
  CHECK(one.size() == 1);
  CHECK(other.size() == 1);
}

TEST_CASE("another thread's handler is waited for, and is no nested use", "[memory]") {
  Store store;
  std::latch inside{1};
  std::atomic<int> at_work = 0;
  std::atomic<int> most = 0;
  const IdempotentConsumer consumer{"keep.v1", store, [&](Store::Transaction& tx, const Note& note) {
                                      if (++at_work > most) most = at_work.load();
                                      keep(tx, note);
                                      if (note.id == "first") inside.count_down();
                                      --at_work;
                                    }};
  std::thread first{[&] { static_cast<void>(consumer(Note{"first"})); }};
  inside.wait();
  CHECK(consumer(Note{"second"}).status == Status::applied);
  first.join();
  CHECK(most == 1);
  CHECK(store.state().ids.size() == 2);
}

TEST_CASE("a state that cannot be copied now is a failure like any other", "[memory]") {
  struct Heavy {
    Heavy() = default;
    Heavy(const Heavy& other) : fails{other.fails} {
      if (*fails) throw std::bad_alloc{};
    }
    Heavy& operator=(const Heavy&) = default;
    std::shared_ptr<bool> fails = std::make_shared<bool>(false);
  };
  MemoryStore<Heavy> store;
  const auto fails = store.state().fails;
  const IdempotentConsumer consumer{"heavy.v1", store, [](auto&, const Note&) {}};
  *fails = true;
  std::optional<Outcome<>> outcome;
  CHECK_NOTHROW(outcome.emplace(consumer(Note{})));
  *fails = false;
  if (outcome) CHECK(outcome->action == Action::redeliver);
  CHECK(store.size() == 0);
  CHECK(consumer(Note{}).status == Status::applied);
}

TEST_CASE("every row has a token of its own, which a doubt does not take for its own", "[memory]") {
  Store store;
  const auto effect = [](Store::Transaction&) -> StoredValue { return "v"; };
  const Key a{"", "c", "a"};
  const Key b{"", "c", "b"};
  CHECK(std::holds_alternative<Committed>(store.apply({.key = a, .fingerprint = fingerprint_of(1)}, effect)));
  CHECK(std::holds_alternative<Committed>(store.apply({.key = b}, effect)));
  const Applied found_a = store.apply({.key = a}, effect);
  const Applied found_b = store.apply({.key = b, .doubted = ClaimToken{}}, effect);
  REQUIRE(std::holds_alternative<Found>(found_a));
  REQUIRE(std::holds_alternative<Found>(found_b));
  CHECK(std::get<Found>(found_a).fingerprint == fingerprint_of(1));
  CHECK(std::get<Found>(found_a).value == "v");
  CHECK_FALSE(std::get<Found>(found_b).fingerprint.given());
  CHECK(std::get<Found>(found_a).token != std::get<Found>(found_b).token);
  CHECK(std::get<Found>(found_b).token != ClaimToken{});
}

TEST_CASE("the key is held no longer than the call", "[memory]") {
  Store store;
  const Key key{"", "c", "a"};
  const auto fail = [](Store::Transaction&) -> StoredValue { throw std::runtime_error{"no"}; };
  const auto misconfigured = [](Store::Transaction&) -> StoredValue { throw ConfigurationError{"no"}; };
  for (int i = 0; i < 3; ++i) {
    const Applied answer = store.apply({.key = key, .on_concurrent = Concurrent::defer}, fail);
    CHECK(std::holds_alternative<Failed>(answer));
    CHECK_THROWS_AS(
        static_cast<void>(store.apply({.key = key, .on_concurrent = Concurrent::defer}, misconfigured)),
        ConfigurationError);
  }
}
