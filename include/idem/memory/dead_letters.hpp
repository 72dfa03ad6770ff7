// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <idem/dead_letter.hpp>
#include <idem/detail/letter_text.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>

namespace idem {

/// Keeps dead letters in memory, for unit tests: without their payloads, and until the process ends.
///
/// Thread safety: any number of threads.
class MemoryDeadLetters {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  explicit MemoryDeadLetters(Clock clock = std::chrono::system_clock::now) : clock_{std::move(clock)} {}
  MemoryDeadLetters(const MemoryDeadLetters&) = delete;
  MemoryDeadLetters& operator=(const MemoryDeadLetters&) = delete;

  /// See DeadLetterSink.
  void record(const DeadLetter& letter) {
    const Failure cause = detail::storable(letter.failure);
    const std::lock_guard lock{mutex_};
    const auto now = clock_();
    const auto [place, is_new] = places_.try_emplace({letter.key, letter.event.fingerprint}, records_.size());
    if (is_new)
      records_.push_back({.tenant = letter.key.tenant(),
                          .consumer = letter.key.consumer(),
                          .event_id = letter.key.event_id(),
                          .fingerprint = letter.event.fingerprint,
                          .recorded = 0,
                          .first_at = now,
                          .first = cause});
    DeadLetterRecord& record = records_[place->second];
    ++record.recorded;
    record.last_at = now;
    record.last = cause;
    record.attempts = letter.attempts;
    record.delivery_count = letter.event.delivery_count;
    record.ordering_key = detail::storable(letter.event.ordering_key);
    record.occurred_at = letter.event.occurred_at;
  }

  /// A copy of all of them, oldest first.
  [[nodiscard]] std::vector<DeadLetterRecord> records() const {
    const std::lock_guard lock{mutex_};
    return records_;
  }

 private:
  Clock clock_;
  mutable std::mutex mutex_;
  std::vector<DeadLetterRecord> records_ = {};
  std::map<std::pair<Key, Fingerprint>, std::size_t> places_ = {};
};

static_assert(DeadLetterSink<MemoryDeadLetters>);

}  // namespace idem
