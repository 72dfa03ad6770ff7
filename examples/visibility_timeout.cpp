// SPDX-License-Identifier: MIT
// Choosing retry policies when a queue hides the message for 60 s at a time: the arithmetic is the
// compiler's.

#include <cstdlib>
#include <iostream>

#include <idem/idem.hpp>

struct Shipped {
  std::string id;
  int receive_count;
  std::chrono::steady_clock::time_point received;
};

// [visibility_timeout]
using namespace std::chrono_literals;

// The queue hides a message for 60 s; one run of the handler is given 5 s of them.
constexpr auto visibility_timeout = 60s;
constexpr auto one_run = 5s;

// Within the call, while the message is held.
constexpr auto here = idem::ExponentialBackoff{200ms, 10s} | idem::FullJitter{} | idem::MaxAttempts{5} |
                      idem::HonourRetryAfter{2s} | idem::WithinLease{one_run};
static_assert(5 * one_run + idem::worst_case_delay(here) < visibility_timeout);

// Between deliveries. A failure on the fourth delivery, or a later one, is rejected.
constexpr auto later = idem::Redeliver{idem::Intervals{1min, 5min, 30min} | idem::ProportionalJitter{20}};

idem::Event event_of(const Shipped& m) {
  return {.id = m.id,
          .delivery_count = m.receive_count,                  // what `later` counts
          .visible_until = m.received + visibility_timeout};  // what `WithinLease` keeps free
}
// [visibility_timeout]

int main() {
  idem::MemoryStore<> store;
  const auto fails = [](idem::MemoryStore<>::Transaction&, const Shipped&) {
    throw idem::TransientError{"the carrier is down", 30s};
  };
  const idem::IdempotentConsumer ship{"ship.v1", store, fails, here, later};
  const auto third = ship(Shipped{"s-1", 3, std::chrono::steady_clock::now()});
  const auto fourth = ship(Shipped{"s-1", 4, std::chrono::steady_clock::now()});
  std::cout << "third delivery: " << to_string(third.status) << ", fourth: " << to_string(fourth.status)
            << '\n';
  return third.status == idem::Status::deferred && third.redeliver_after >= 24min &&
                 fourth.status == idem::Status::rejected
             ? EXIT_SUCCESS
             : EXIT_FAILURE;
}
