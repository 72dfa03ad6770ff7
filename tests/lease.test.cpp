// SPDX-License-Identifier: MIT
#include <idem/lease.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "conformance/attempts.hpp"
#include "conformance/leases.hpp"
#include "conformance/memory_bench.hpp"
#include "conformance/takeovers.hpp"
#include "conformance/values.hpp"
#include "conformance/windows.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

/// A bench whose store's clock runs ahead as it is told.
struct TimedMemoryBench {
  using Store = MemoryStore<Ledger>;
  static constexpr int many = 10'000;
  using TimePoint = std::chrono::system_clock::time_point;

  std::atomic<Duration> ahead = Duration{0};
  Store store{{}, [this] { return now(); }};

  [[nodiscard]] TimePoint now() const { return std::chrono::system_clock::now() + ahead.load(); }
  void advance(Duration span) { ahead = ahead.load() + span; }
  void forget() {}

  [[nodiscard]] Store& rival() noexcept { return store; }
  void write(Store::Transaction& tx, std::int64_t n) const { tx.state().sum += n; }
  [[nodiscard]] std::int64_t seen(Store::Transaction& tx) const { return tx.state().sum; }
  [[nodiscard]] std::int64_t sum() const { return store.state().sum; }
  [[nodiscard]] std::size_t keys() const { return store.size(); }
};

static_assert(!std::is_copy_constructible_v<Lease>);

}  // namespace

TEST_CASE("a consumer on a MemoryStore: leases", "[lease]") {
  show_all(lease_behaviours<TimedMemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: takeovers", "[lease]") {
  show_all(takeover_behaviours<TimedMemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: windows", "[lease]") {
  show_all(window_behaviours<TimedMemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: counted attempts", "[lease]") {
  show_all(attempt_behaviours<TimedMemoryBench>());
}
TEST_CASE("a consumer on a MemoryStore: values of leases", "[lease]") {
  show_all(value_behaviours<TimedMemoryBench>());
}

TEST_CASE("a lease asks to be extended until it is lost", "[lease]") {
  std::vector<Duration> asked;
  bool ours = true;
  Lease lease{7, "key", [&](Duration length) {
                asked.push_back(length);
                return ours;
              }};
  CHECK(lease.token() == 7);
  CHECK(lease.idempotency_key() == "key");
  lease.extend(30s);
  CHECK_FALSE(lease.lost());
  ours = false;
  lease.extend(20s);
  CHECK(lease.lost());
  ours = true;
  lease.extend(10s);
  CHECK(lease.lost());
  CHECK(asked == std::vector<Duration>{30s, 20s});
}
