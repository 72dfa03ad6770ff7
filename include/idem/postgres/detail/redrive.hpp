// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/detail/letter_text.hpp>
#include <idem/event.hpp>
#include <idem/fingerprint.hpp>
#include <idem/handler.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>
#include <idem/postgres/dead_letter.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/letter_lock.hpp>
#include <idem/postgres/detail/letter_rows.hpp>
#include <idem/postgres/detail/letter_statements.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres::detail {

/// Which letters are being redriven, each by which thread: what that thread records of one is no new death.
class Redriving {
 public:
  class Turn {
   public:
    Turn(Redriving& redriving, const StoredDeadLetter& letter) : redriving_{redriving}, letter_{letter} {
      const std::lock_guard lock{redriving_.mutex_};
      redriving_.turns_.push_back({std::this_thread::get_id(), &letter_});
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      const std::lock_guard lock{redriving_.mutex_};
      std::erase(redriving_.turns_, At{std::this_thread::get_id(), &letter_});
    }

   private:
    Redriving& redriving_;
    const StoredDeadLetter& letter_;
  };

  [[nodiscard]] bool is(const Key& key, const Fingerprint& fingerprint) const {
    const std::lock_guard lock{mutex_};
    return std::any_of(turns_.begin(), turns_.end(), [&](const At& turn) {
      const StoredDeadLetter& letter = *turn.second;
      return turn.first == std::this_thread::get_id() && letter.tenant == key.tenant() &&
             letter.consumer == key.consumer() && letter.event_id == key.event_id() &&
             letter.fingerprint == fingerprint;
    });
  }

 private:
  using At = std::pair<std::thread::id, const StoredDeadLetter*>;

  mutable std::mutex mutex_;
  std::vector<At> turns_ = {};
};

template <class T>
struct DecodedMessage {
  using type = T;
};
template <class T>
struct DecodedMessage<std::optional<T>> {
  using type = T;
};

/// One redrive: what it has done so far, and how it does one letter.
class Redrive {
 public:
  Redrive(Upkeep& upkeep, const LetterStatements& statements, const Runtime& runtime, Redriving& redriving,
          const RedriveOptions& options)
      : upkeep_{upkeep},
        statements_{statements},
        runtime_{runtime},
        redriving_{redriving},
        options_{options},
        lock_{upkeep.connector(), statements} {}

  [[nodiscard]] const RedriveReport& report() const noexcept { return report_; }
  [[nodiscard]] bool goes_on() const noexcept {
    const std::uint64_t taken = report_.applied + report_.duplicate + report_.failed + report_.ready;
    return !stopped_ && taken < options_.limit && !options_.stop.stop_requested();
  }

  template <class Consumer, class Decode>
  void one(std::int64_t id, const DeadLetterFilter& filter, const Consumer& consumer, Decode& decode) {
    const bool dry = options_.dry_run == DryRun::yes;
    if (!dry && !lock_.take(id)) {
      ++report_.skipped.locked;
      return;
    }
    const Held held{lock_};
    const std::optional<StoredDeadLetter> letter = read(id, filter, dry ? "" : "FOR UPDATE SKIP LOCKED");
    if (!letter) {
      ++report_.skipped.locked;
      return;
    }
    if (std::uint64_t* const reason = reason_to_skip(*letter)) {
      ++*reason;
      return;
    }
    using Decoded = std::remove_cvref_t<std::invoke_result_t<Decode&, const StoredDeadLetter&>>;
    using Message = typename DecodedMessage<Decoded>::type;
    const std::optional<Message> message{std::invoke(decode, *letter)};
    if (!message) {
      ++report_.skipped.not_decoded;
      return;
    }
    if (std::uint64_t* const reason = reason_to_skip(*letter, *message)) {
      ++*reason;
      return;
    }
    if (dry) {
      ++report_.ready;
      return;
    }
    pace();
    if (options_.stop.stop_requested()) return;
    hand_over(*letter, consumer, *message);
  }

 private:
  /// Releases the lock, also when it is not held.
  struct Held {
    LetterLock& lock;
    ~Held() { lock.release(); }
  };

  [[nodiscard]] std::optional<StoredDeadLetter> read(std::int64_t id, const DeadLetterFilter& filter,
                                                     std::string_view lock) {
    const pqxx::result rows = upkeep_.ask(statements_.read(id, filter, lock));
    if (rows.empty()) return std::nullopt;
    StoredDeadLetter letter = letter_of(rows, 0);
    const auto payload = rows[0][rows.columns() - 1];
    if (!payload.is_null()) letter.payload = bytes_of_hex(payload.c_str());
    return letter;
  }

  [[nodiscard]] std::uint64_t* reason_to_skip(const StoredDeadLetter& letter) noexcept {
    if (letter.event_id.empty()) return &report_.skipped.undecodable;
    if (letter.payload) return nullptr;
    return letter.payload_kept == PayloadKept::redacted ? &report_.skipped.redacted
                                                        : &report_.skipped.no_payload;
  }

  template <class Message>
  [[nodiscard]] std::uint64_t* reason_to_skip(const StoredDeadLetter& letter, const Message& message) {
    if constexpr (Identified<Message>) {
      std::optional<Event> event;
      try {
        event.emplace(event_of(message));
      } catch (...) {
        return &report_.skipped.not_decoded;
      }
      const bool differs =
          comparable(event->fingerprint, letter.fingerprint) && event->fingerprint != letter.fingerprint;
      if (event->tenant != letter.tenant || event->id != letter.event_id || differs)
        return &report_.skipped.another_event;
    }
    return nullptr;
  }

  template <class Consumer, class Message>
  void hand_over(const StoredDeadLetter& letter, const Consumer& consumer, const Message& message) {
    upkeep_.ask(statements_.forget_starts(letter));
    const Event event{.tenant = letter.tenant,
                      .id = letter.event_id,
                      .fingerprint = letter.fingerprint,
                      .ordering_key = letter.ordering_key,
                      .payload = *letter.payload,
                      .delivery_count = 1,
                      .occurred_at = letter.occurred_at};
    const auto outcome = [&] {
      const Redriving::Turn turn{redriving_, letter};
      return consumer.process(event, message, options_.stop);
    }();
    if (outcome.status == Status::applied || outcome.status == Status::duplicate) {
      upkeep_.ask(statements_.redriven(letter, random_token()));
      ++(outcome.status == Status::applied ? report_.applied : report_.duplicate);
      return;
    }
    const Failure cause = idem::detail::storable(outcome.failure.value_or(Failure{}));
    if (cause.kind == ErrorClass::cancelled) {  // it did not fail
      stopped_ = true;
      return;
    }
    upkeep_.ask(statements_.failed_again(letter, cause, outcome.attempts, random_token()));
    ++report_.failed;
  }

  /// Waits until the next handler may start.
  void pace() {
    if (!options_.per_second) return;
    const auto now = runtime_.clock();
    if (next_start_ && *next_start_ > now) {
      ++report_.pauses;
      runtime_.sleeper(*next_start_, options_.stop);
    }
    const Duration apart = std::chrono::ceil<Duration>(std::chrono::seconds{1}) / *options_.per_second;
    next_start_ = idem::detail::saturating_add(next_start_ ? (std::max)(*next_start_, now) : now, apart);
  }

  Upkeep& upkeep_;
  const LetterStatements& statements_;
  const Runtime& runtime_;
  Redriving& redriving_;
  const RedriveOptions& options_;
  LetterLock lock_;
  RedriveReport report_ = {};
  std::optional<std::chrono::steady_clock::time_point> next_start_ = {};
  bool stopped_ = false;
};

}  // namespace idem::postgres::detail
