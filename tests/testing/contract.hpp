// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <idem/testing/conformance.hpp>

#include "support/catch.hpp"

namespace idem::tests {

/// Shows the whole contract of a store, each sentence as a section on a bench that `make` gives.
template <class Make>
void show_contract(Make make) {
  using Bench = decltype(make());
  for (const testing::StoreCheck<Bench>& check : testing::store_checks<Bench>()) {
    DYNAMIC_SECTION(check.sentence) {
      Bench bench = make();
      std::string failed;
      for (const std::string& why : testing::failures_of(check, bench)) failed += why + "\n";
      CHECK(failed == "");
    }
  }
}

}  // namespace idem::tests
