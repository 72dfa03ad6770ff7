// expect: idem: this argument is no part of a consumer
// SPDX-License-Identifier: MIT
#include <idem/consumer.hpp>
#include <idem/memory/store.hpp>
#include <string>

using namespace idem;

struct Order {
  std::string id;
};
Event event_of(const Order& order) { return {.id = order.id}; }

using namespace std::chrono_literals;

int main() {
  MemoryStore<> store;
  const IdempotentConsumer ship{"ship.v1", store, [](MemoryStore<>::Transaction&, const Order&) {}, 5s};
  const auto outcome = ship(Order{"o-1"});
  return static_cast<int>(outcome.status);
}
