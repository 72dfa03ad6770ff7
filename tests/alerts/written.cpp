// SPDX-License-Identifier: MIT
// Prints every family of metrics that the library writes, each with a sample.

#include <chrono>
#include <iostream>

#include <idem/metrics.hpp>
#include <idem/postgres/stats.hpp>

int main() {
  using namespace std::chrono_literals;
  idem::MetricsObserver metrics;
  const idem::Key key{"tenant", "charge-\"order\"\\.v1", "e-1"};
  const idem::Event event{.occurred_at = std::chrono::system_clock::now() - 1min};
  const idem::Failure failure{};
  metrics.observe({.what = idem::Observed::attempt_failed, .key = key, .event = event, .failure = &failure});
  metrics.observe({.what = idem::Observed::decided,
                   .key = key,
                   .event = event,
                   .attempts = 2,
                   .elapsed = 20ms,
                   .status = idem::Status::applied,
                   .action = idem::Action::acknowledge});
  idem::postgres::Stats stats;
  stats.keys.rows = 1'000'000'000;
  stats.purge.age = 1h;
  std::cout << metrics.prometheus_text() << idem::postgres::prometheus_text(stats);
}
