// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/scheduler.hpp>

#include "simulation/database.hpp"

namespace idem::tests::simulation {

/// Keeps books of its own on who holds which lease, and says what should not
/// have been.
class Referee {
 public:
  Referee(testing::Scheduler& scheduler, const testing::ManualClock& clock)
      : scheduler_{scheduler}, clock_{clock} {}
  Referee(const Referee&) = delete;
  Referee& operator=(const Referee&) = delete;

  /// The first one counts: what follows may follow from it.
  void blame(std::string_view event, std::string_view what) {
    if (!what_.empty()) return;
    event_ = event;
    what_ = what;
    scheduler_.tell(event, [&] { return "!!  " + what_; });
  }
  [[nodiscard]] bool blamed() const noexcept { return !what_.empty(); }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }
  [[nodiscard]] const std::string& event() const noexcept { return event_; }

  [[nodiscard]] std::uint64_t takeovers() const noexcept { return takeovers_; }

  void saw_acquire(const Key& key, std::optional<Duration> length, const Acquired& met) {
    Book& book = books_[key.event_id()];
    if (const auto* leased = std::get_if<Leased>(&met)) {
      if (!book.live(now()) || leased->rest != book.rest(now()))
        blame(key.event_id(), "a lease outlived its length");
    }
    const auto* grant = std::get_if<Grant>(&met);
    if (grant == nullptr || book.is(*grant)) return;
    if (book.done) blame(key.event_id(), "a lease was granted after its effect was recorded");
    if (book.live(now())) blame(key.event_id(), "a lease was granted while another was live");
    if (grant->fence <= last_fence_) blame(key.event_id(), "a fencing token did not grow");
    if (book.fence != 0) ++takeovers_;
    last_fence_ = grant->fence;
    book = {.claim = grant->claim, .fence = grant->fence};
    if (length) book.ends = now() + *length;
  }
  void saw_extend(const Key& key, const Grant& grant, Duration length, const Held& met) {
    Book& book = owned(key, grant, met);
    if (std::holds_alternative<Kept>(met)) book.ends = now() + length;
  }
  void saw_release(const Key& key, const Grant& grant, const Held& met) {
    Book& book = owned(key, grant, met);
    if (std::holds_alternative<Kept>(met)) book.ends = now();
  }
  void saw_complete(const Key& key, const Grant& grant, const Held& met) {
    Book& book = books_[key.event_id()];
    if (!book.is(grant) && !std::holds_alternative<Lost>(met))
      blame(key.event_id(), "a successor's lease was touched");
    if (std::holds_alternative<Kept>(met)) book.done = true;
  }

 private:
  using Time = Database::Time;

  struct Book {
    ClaimToken claim = {};
    std::uint64_t fence = 0;
    std::optional<Time> ends = {};
    bool done = false;

    [[nodiscard]] bool is(const Grant& grant) const { return fence == grant.fence && claim == grant.claim; }
    [[nodiscard]] bool live(Time now) const { return fence != 0 && !done && (!ends || *ends > now); }
    [[nodiscard]] std::optional<Duration> rest(Time now) const {
      return ends ? std::optional<Duration>{*ends - now} : std::nullopt;
    }
  };

  [[nodiscard]] Book& owned(const Key& key, const Grant& grant, const Held& met) {
    Book& book = books_[key.event_id()];
    const bool own = book.is(grant) && !book.done;
    if (!own && std::holds_alternative<Kept>(met)) blame(key.event_id(), "a successor's lease was touched");
    if (own && std::holds_alternative<Lost>(met)) blame(key.event_id(), "an owner was refused its own lease");
    return book;
  }

  [[nodiscard]] Time now() const { return clock_.store_now(); }

  testing::Scheduler& scheduler_;
  const testing::ManualClock& clock_;
  std::string event_ = {};
  std::string what_ = {};
  std::unordered_map<std::string, Book> books_ = {};
  std::uint64_t last_fence_ = 0;
  std::uint64_t takeovers_ = 0;
};

/// A connection under the referee's eyes; before and after each verb others get
/// on with their work.
class Watched {
 public:
  using Transaction = Connection::Transaction;

  Watched(Connection& inner, Referee& referee, testing::Scheduler& scheduler, std::function<void()> meanwhile)
      : inner_{inner}, referee_{referee}, scheduler_{scheduler}, meanwhile_{std::move(meanwhile)} {}
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  [[nodiscard]] Applied apply(const Claim& claim, idem::Effect<Transaction> effect) {
    meanwhile_();
    Applied met = inner_.apply(claim, effect);
    tell(claim, claim.doubted ? "claim after a doubt" : "claim", named(met));
    meanwhile_();
    return met;
  }
  [[nodiscard]] Acquired acquire(const Claim& claim, std::optional<Duration> lease) {
    meanwhile_();
    Acquired met = inner_.acquire(claim, lease);
    const auto* grant = std::get_if<Grant>(&met);
    tell(claim, claim.doubted ? "acquire after a doubt" : "acquire", named(met), grant);
    referee_.saw_acquire(claim.key, lease, met);
    meanwhile_();
    return met;
  }
  [[nodiscard]] Held extend(const Claim& claim, const Grant& grant, Duration length) {
    meanwhile_();
    const Held met = inner_.extend(claim, grant, length);
    tell(claim, "extend", named(met), &grant);
    referee_.saw_extend(claim.key, grant, length, met);
    meanwhile_();
    return met;
  }
  [[nodiscard]] Held complete(const Claim& claim, const Grant& grant, const StoredValue& value) {
    meanwhile_();
    const Held met = inner_.complete(claim, grant, value);
    tell(claim, "complete", named(met), &grant);
    referee_.saw_complete(claim.key, grant, met);
    meanwhile_();
    return met;
  }
  [[nodiscard]] Held release(const Claim& claim, const Grant& grant) {
    meanwhile_();
    const Held met = inner_.release(claim, grant);
    tell(claim, "release", named(met), &grant);
    referee_.saw_release(claim.key, grant, met);
    meanwhile_();
    return met;
  }

 private:
  struct Names {
    std::string_view operator()(const Committed&) const { return "committed"; }
    std::string_view operator()(const Found&) const { return "found done"; }
    std::string_view operator()(const Busy&) const { return "busy"; }
    std::string_view operator()(const Leased&) const { return "leased by another"; }
    std::string_view operator()(const BeyondWindow&) const { return "beyond the window"; }
    std::string_view operator()(const InDoubt&) const { return "in doubt, its COMMIT is still running"; }
    std::string_view operator()(const Failed&) const { return "rolled back"; }
    std::string_view operator()(const Grant&) const { return "granted"; }
    std::string_view operator()(const Kept&) const { return "done"; }
    std::string_view operator()(const Lost&) const { return "lost to another"; }
  };
  template <class Answer>
  [[nodiscard]] static std::string_view named(const Answer& met) {
    return std::visit(Names{}, met);
  }
  void tell(const Claim& claim, std::string_view verb, std::string_view met, const Grant* grant = nullptr) {
    scheduler_.tell(claim.key.event_id(), [&] {
      const std::string token = grant == nullptr ? "" : fmt::format(" with token {}", grant->fence);
      return fmt::format("    database: {}{}: {}", verb, token, met);
    });
  }

  Connection& inner_;
  Referee& referee_;
  testing::Scheduler& scheduler_;
  std::function<void()> meanwhile_;
};

}  // namespace idem::tests::simulation
