// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>

#include <idem/memory/store.hpp>

namespace idem::tests {

struct Ledger {
  std::int64_t sum = 0;
};

struct MemoryBench {
  using Store = MemoryStore<Ledger>;
  static constexpr bool runs_at_once = false;

  Store store{};

  [[nodiscard]] Store& rival() noexcept { return store; }
  void write(Store::Transaction& tx, std::int64_t n) const { tx.state().sum += n; }
  [[nodiscard]] std::int64_t seen(Store::Transaction& tx) const { return tx.state().sum; }
  [[nodiscard]] std::int64_t sum() const { return store.state().sum; }
  [[nodiscard]] std::size_t keys() const { return store.size(); }
  /// A wait in memory cannot be seen: this makes it likely, and no behaviour depends on it.
  void until_waited_for(const Store&) const {
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
  }
};

}  // namespace idem::tests
