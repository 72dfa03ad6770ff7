// expect: idem: no event_of for this message
// SPDX-License-Identifier: MIT
#include <idem/consumer.hpp>
#include <idem/memory/store.hpp>
#include <string>

using namespace idem;

struct Order {
  std::string id;
};

int main() {
  MemoryStore<> store;
  const IdempotentConsumer ship{"ship.v1", store, [](MemoryStore<>::Transaction&, const Order&) {}};
  const auto outcome = ship(Order{"o-1"});
  return static_cast<int>(outcome.status);
}
