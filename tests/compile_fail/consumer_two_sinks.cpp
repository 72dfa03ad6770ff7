// expect: idem: a consumer takes at most one part of each kind
// SPDX-License-Identifier: MIT
#include <idem/consumer.hpp>
#include <idem/memory/store.hpp>
#include <string>

using namespace idem;

struct Order {
  std::string id;
};
Event event_of(const Order& order) { return {.id = order.id}; }

struct Drawer {
  void record(const DeadLetter&) {}
};

int main() {
  MemoryStore<> store;
  Drawer drawer;
  const IdempotentConsumer ship{"ship.v1", store, [](MemoryStore<>::Transaction&, const Order&) {}, drawer,
                                store};
  const auto outcome = ship(Order{"o-1"});
  return static_cast<int>(outcome.status);
}
