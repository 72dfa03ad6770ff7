// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include <idem/key.hpp>

namespace idem::detail {

/// Lets one call of this process at a time through for each key.
///
/// The database would make them wait as well, but each with a connection: one hot event would starve the
/// pool.
class KeyGate {
  struct ByKey {
    bool operator()(const Key* a, const Key* b) const noexcept { return *a < *b; }
  };
  using Keys =
      std::set<const Key*, ByKey>;  // as many as there are calls: ordering them is cheaper than hashing

 public:
  /// Holds the key until destroyed.
  class Pass {
   public:
    Pass(Pass&& other) noexcept : gate_{std::exchange(other.gate_, nullptr)}, place_{other.place_} {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->leave(place_);
    }

   private:
    friend KeyGate;
    Pass(KeyGate& gate, Keys::iterator place) noexcept : gate_{&gate}, place_{place} {}
    KeyGate* gate_;
    Keys::iterator place_;
  };

  /// Waits for the key until `deadline` or a stop; nullopt when that comes first. `key` outlives the pass.
  [[nodiscard]] std::optional<Pass> enter(const Key& key, std::chrono::steady_clock::time_point deadline,
                                          const std::stop_token& stop) {
    std::unique_lock lock{mutex_};
    auto entry = held_.insert(&key);
    if (!entry.second) {
      ++waiting_;
      changed_.wait_until(lock, stop, deadline, [&] { return (entry = held_.insert(&key)).second; });
      --waiting_;
    }
    if (!entry.second) return std::nullopt;
    return Pass{*this, entry.first};
  }

 private:
  void leave(Keys::iterator place) {
    bool somebody_waits = false;
    {
      const std::lock_guard lock{mutex_};
      held_.erase(place);
      somebody_waits = waiting_ > 0;
    }
    if (somebody_waits) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  Keys held_;
  std::size_t waiting_ = 0;
};

}  // namespace idem::detail
