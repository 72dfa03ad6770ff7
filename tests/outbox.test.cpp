// SPDX-License-Identifier: MIT
#include <idem/outbox.hpp>

#include <chrono>
#include <string>
#include <vector>

#include <idem/memory/store.hpp>

#include "conformance/memory_bench.hpp"
#include "conformance/outbox.hpp"
#include "support/catch.hpp"

namespace idem::tests::publishing {

namespace {

struct PublishingMemoryBench {
  using Store = MemoryStore<Ledger>;

  Duration ahead{0};
  Store store{{}, [this] { return std::chrono::system_clock::now() + ahead; }};

  [[nodiscard]] Store& rival() noexcept { return store; }
  void write(Store::Transaction& tx, std::int64_t n) const { tx.state().sum += n; }
  [[nodiscard]] std::int64_t sum() const { return store.state().sum; }
  [[nodiscard]] std::size_t keys() const { return store.size(); }
  [[nodiscard]] std::vector<OutboxMessage> outbox() const { return store.outbox(); }
  void advance(Duration span) { ahead += span; }
};

}  // namespace

TEST_CASE("a handler on a MemoryStore publishes", "[outbox]") {
  show_all(outbox_behaviours<PublishingMemoryBench>());
}

TEST_CASE("what is taken out of a store's outbox is gone, and its ids stay taken", "[outbox]") {
  MemoryStore<> store;
  const IdempotentConsumer pay{"pay.v1", store, [](auto& tx, const Payment& p) {
                                 enqueue(tx, OutboxMessage{.topic = p.id, .id = "mine"});
                               }};
  CHECK(pay(Payment{.id = "p-1"}).status == Status::applied);
  const auto taken = store.take_outbox();
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].topic == "p-1");
  CHECK(store.outbox().empty());
  CHECK(pay(Payment{.id = "p-2"}).status == Status::rejected);
  CHECK(store.take_outbox().empty());
}

TEST_CASE("an effect without a handler at work for an event publishes nothing", "[outbox]") {
  MemoryStore<> store;
  const Key key{"", "c", "e"};
  const std::vector<Claim> claims{{.key = key}};
  const auto applied = store.apply_batch(claims, [](auto& tx, auto) {
    CHECK(contains(refused([&] { enqueue(tx, OutboxMessage{.topic = "t"}); }), "outside an open claim"));
    return std::vector<StoredValue>(1);
  });
  CHECK(std::holds_alternative<BatchCommitted>(applied));
  CHECK(store.outbox().empty());
}

}  // namespace idem::tests::publishing
