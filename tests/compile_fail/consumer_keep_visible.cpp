// expect: idem: a consumer does not take KeepVisible yet
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
  const IdempotentConsumer ship{"ship.v1", store, [](MemoryStore<>::Transaction&, const Order&) {},
                                KeepVisible{10s, [] {}}};
  const auto outcome = ship(Order{"o-1"});
  return static_cast<int>(outcome.status);
}
