// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <idem/store.hpp>
#include <idem/testing/conformance/batches.hpp>
#include <idem/testing/conformance/check.hpp>
#include <idem/testing/conformance/leases.hpp>
#include <idem/testing/conformance/transactions.hpp>

namespace idem::testing {

/// What store.hpp asks of this store, for each concept that it models: run each on a bench of its own.
///
/// Waits of two threads are part of it, and no sleeping. It shows what can be seen from outside while nothing fails:
/// lost answers, crashes and what else a network does, a store's own tests have to bring about.
template <StoreBench Bench>
[[nodiscard]] std::vector<StoreCheck<Bench>> store_checks() {
  using Store = typename Bench::Store;
  std::vector<StoreCheck<Bench>> checks;
  const auto append = [&](std::vector<StoreCheck<Bench>> more) {
    checks.insert(checks.end(), more.begin(), more.end());
  };
  if constexpr (TransactionalStore<Store>) append(transaction_checks<Bench>());
  if constexpr (BatchStore<Store>) append(batch_checks<Bench>());
  if constexpr (LeaseStore<Store>) append(lease_checks<Bench>());
  if constexpr (CountingStore<Store>) append(counting_checks<Bench>());
  return checks;
}

/// All of them, for any test framework: `make()` gives a fresh bench each time. The sentences that do not hold, and why; empty: all hold.
template <class Make>
[[nodiscard]] std::vector<std::string> store_failures(Make make) {
  using Bench = decltype(make());
  std::vector<std::string> failed;
  for (const StoreCheck<Bench>& check : store_checks<Bench>()) {
    Bench bench = make();
    for (const std::string& why : failures_of(check, bench))
      failed.push_back(check.sentence + ": not so: " + why);
  }
  return failed;
}

}  // namespace idem::testing
