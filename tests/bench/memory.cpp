// SPDX-License-Identifier: MIT
//
// Whether a worker grows: its resident size after the first tenth of its events, and at the end.
//
//   memory CSV [EVENTS]
//
// The store is PostgreSQL: the keys of a MemoryStore are in the worker's own memory, and are meant to stay there. Not
// for its speed: the server does not wait for its disk. It is found as libpq finds it.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include <fmt/core.h>

#include <idem/idem.hpp>
#include <idem/metrics.hpp>
#include <idem/postgres.hpp>

#include "bench/results.hpp"
#include "support/server.hpp"

namespace {

struct Paid {
  std::int64_t number;
};

idem::Event event_of(const Paid& m) {
  return {.tenant = "acme",
          .id = fmt::format("{:036}", m.number),
          .fingerprint = idem::fingerprint_of(m.number),
          .delivery_count = 1};
}

/// In KB, as the kernel counts it.
double resident() {
  std::ifstream statm{"/proc/self/statm"};
  double size = 0;
  double pages = 0;
  statm >> size >> pages;
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1024;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: memory CSV [EVENTS]\n";
    return 2;
  }
  const std::int64_t events = argc > 2 ? std::atoll(argv[2]) : 50'000;
  idem::bench::Results results{argv[1], "memory"};
  idem::tests::execute("DROP SCHEMA IF EXISTS bench CASCADE");
  idem::PostgresStore store{"options='-c synchronous_commit=off'", {.schema = "bench"}};
  store.create_schema();
  idem::tests::execute("CREATE TABLE bench.total (cents bigint)");
  idem::MetricsObserver metrics;
  const idem::IdempotentConsumer consumer{"bench.v1", store,
                                          [](idem::postgres::Transaction& tx, const Paid& m) {
                                            if (m.number % 10 == 3)
                                              throw idem::PermanentError{"this one is not to be had"};
                                            idem::postgres::exec(tx, "INSERT INTO bench.total VALUES ($1)",
                                                                 m.number);
                                          },
                                          metrics};
  const auto handle = [&](std::int64_t number, idem::Status expected) {
    if (consumer(Paid{number}).status != expected)
      throw std::runtime_error{fmt::format("event {} came to something else", number)};
  };
  double warm = 0;
  for (std::int64_t n = 1; n <= events; ++n) {
    handle(n, n % 10 == 3 ? idem::Status::rejected : idem::Status::applied);
    if (n % 10 == 1) handle(n, idem::Status::duplicate);
    if (n == events / 10) warm = resident();
  }
  const double grown = resident() - warm;
  results.add("resident size after a tenth of the events", 1, 0, 1, warm, "KB");
  results.add(fmt::format("growth over the rest of {} events", events), 1, 0, 1, grown, "KB");
  std::cerr << fmt::format("{} events: {:.0f} KB resident after a tenth of them, {:+.0f} KB at the end\n",
                           events, warm, grown);
}
