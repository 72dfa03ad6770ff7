// SPDX-License-Identifier: MIT
#include <idem/testing/conformance.hpp>

#include <chrono>
#include <string>

#include <idem/duration.hpp>

#include "conformance/postgres_bench.hpp"
#include "support/catch.hpp"
#include "support/server.hpp"
#include "testing/contract.hpp"

namespace idem::tests::contract {

namespace {

/// What is stored moves into the past instead of the server's clock into the future.
struct TimedBench : PostgresBench {
  using PostgresBench::PostgresBench;
  void advance(Duration span) const {
    const std::string by =
        std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(span).count()) +
        " * interval '1 microsecond'";
    execute("UPDATE " + schema + ".keys SET leased_until = leased_until - " + by +
            ", window_ends = window_ends - " + by);
  }
};

}  // namespace

TEST_CASE("a PostgresStore keeps the contract of a store", "[testing]") {
  show_contract([] { return TimedBench{}; });
  CHECK(testing::store_checks<TimedBench>().size() >= 35);
}

}  // namespace idem::tests::contract
