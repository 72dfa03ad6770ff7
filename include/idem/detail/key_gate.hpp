// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <unordered_set>
#include <utility>

#include <idem/key.hpp>

namespace idem::detail {

/// Lets one call of this process at a time through for each key.
///
/// The database would make them wait as well, but each with a connection: one hot event would starve the
/// pool.
class KeyGate {
 public:
  /// Holds the key until destroyed.
  class Pass {
   public:
    Pass(KeyGate& gate, const Key& key) noexcept : gate_{&gate}, key_{&key} {}
    Pass(Pass&& other) noexcept : gate_{std::exchange(other.gate_, nullptr)}, key_{other.key_} {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->leave(*key_);
    }

   private:
    KeyGate* gate_;
    const Key* key_;
  };

  /// Waits for the key until `deadline` or a stop; nullopt when that comes first. `key` outlives the pass.
  [[nodiscard]] std::optional<Pass> enter(const Key& key, std::chrono::steady_clock::time_point deadline,
                                          const std::stop_token& stop) {
    std::unique_lock lock{mutex_};
    ++waiting_;
    const bool ours = changed_.wait_until(lock, stop, deadline, [&] { return held_.insert(&key).second; });
    --waiting_;
    if (!ours) return std::nullopt;
    return std::optional<Pass>{std::in_place, *this, key};
  }

 private:
  struct HashKey {
    std::size_t operator()(const Key* key) const noexcept { return std::hash<Key>{}(*key); }
  };
  struct SameKey {
    bool operator()(const Key* a, const Key* b) const noexcept { return *a == *b; }
  };

  void leave(const Key& key) {
    bool somebody_waits = false;
    {
      const std::lock_guard lock{mutex_};
      held_.erase(&key);
      somebody_waits = waiting_ > 0;
    }
    if (somebody_waits) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::unordered_set<const Key*, HashKey, SameKey> held_;
  std::size_t waiting_ = 0;
};

}  // namespace idem::detail
