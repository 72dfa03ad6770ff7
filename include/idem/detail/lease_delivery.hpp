// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>

#include <idem/detail/decisions.hpp>
#include <idem/detail/handler_failure.hpp>
#include <idem/detail/ticker.hpp>
#include <idem/fingerprint.hpp>
#include <idem/lease.hpp>
#include <idem/store.hpp>

namespace idem::detail {

/// The way of one message whose effect is outside the store: acquire, work, complete.
///
/// The lease is kept between the attempts of the call, and released at once when the call gives up.
template <class Store, class Terms>
class LeaseDelivery : public Decisions<Terms> {
 public:
  using Work = std::function<StoredValue(Lease&)>;

  LeaseDelivery(Store& store, const Terms& terms, const Key& key, const Event& event,
                const std::stop_token& stop)
      : Decisions<Terms>{terms, key, event, stop}, store_{store}, claim_{this->claim()} {}

  /// Throws: ConfigurationError.
  [[nodiscard]] Conclusion run(const Work& work) {
    while (!this->decided() && !grant_) {
      if (this->stop_.stop_requested()) {
        this->cancel();
        break;
      }
      Acquired met = this->ask_store([&]() -> Acquired { return store_.acquire(claim_, length()); });
      std::visit([this](auto&& answer) { this->decide(std::move(answer)); }, std::move(met));
    }
    if (grant_) {
      try {
        hold(work);
      } catch (const ConfigurationError&) {
        this->cancel();
        leave();
        throw;
      }
      leave();
    }
    return this->end(resolved_);
  }

 private:
  /// How long an answer of the store is sought that was lost on the way, and the pause between two tries.
  static constexpr Duration doubt_limit = std::chrono::seconds{5};
  static constexpr Duration doubt_pause = std::chrono::milliseconds{100};

  [[nodiscard]] const std::optional<Duration>& length() const noexcept { return this->terms_.options.lease; }

  void decide(Grant grant) {
    if (claim_.doubted) resolved_ = Resolved::yes;
    grant_ = grant;
  }
  void decide(Found row) { this->found(std::move(row)); }
  void decide(Leased lease) { this->leased(lease); }
  void decide(BeyondWindow) { this->beyond_window(); }
  void decide(Failed failed) {
    if (claim_.doubted && pause_in_doubt()) return;
    this->failed(std::move(failed));
  }
  void decide(InDoubt in_doubt) {
    claim_.doubted = in_doubt.token;
    if (!pause_in_doubt()) this->failed({.failure = std::move(in_doubt.failure), .fault = Fault::store});
  }

  /// False: the store was asked for long enough.
  [[nodiscard]] bool pause_in_doubt() {
    if (!doubt_ends_) doubt_ends_ = saturating_add(this->now(), doubt_limit);
    const Duration left = *doubt_ends_ - this->now();
    if (left <= Duration{0} || this->stop_.stop_requested()) return false;
    this->sleep((std::min)(left, doubt_pause));
    return true;
  }

  /// Works while the lease is held, and records the effect.
  void hold(const Work& work) {
    Lease lease{grant_->fence,
                fingerprint_of(this->key_.tenant(), this->key_.consumer(), this->key_.event_id()).to_hex(),
                [this](Duration span) { return still_ours(span); }};
    {
      const auto heartbeat = beat(lease);
      while (!this->decided() && !made_) made_ = attempt(work, lease);
    }
    if (made_) complete(*made_);
  }

  /// Settles the start before the event is free: the next one to start it counts. What was made stays leased
  /// where it could not be recorded.
  void leave() noexcept {
    this->settle_start(store_, claim_);
    if (!made_) release();
  }

  /// Extends the lease three times in its length.
  [[nodiscard]] std::optional<Ticker> beat(Lease& lease) const {
    if (!this->terms_.options.heartbeat || !length()) return std::nullopt;
    const Duration span = *length();
    return std::optional<Ticker>{std::in_place, (std::max<Duration>)(span / 3, std::chrono::milliseconds{1}),
                                 [&lease, span] { lease.extend(span); }};
  }

  [[nodiscard]] std::optional<StoredValue> attempt(const Work& work, Lease& lease) {
    if (lease.lost()) {
      lost();
      return std::nullopt;
    }
    if (this->stop_.stop_requested()) {
      this->cancel();
      return std::nullopt;
    }
    if (!this->may_start(store_, claim_)) return std::nullopt;
    ++this->attempts_;
    try {
      return work(lease);
    } catch (...) {
      Failed failed = handler_failure();
      if (lease.lost())
        lost();
      else
        this->failed(std::move(failed));
      return std::nullopt;
    }
  }

  [[nodiscard]] bool still_ours(Duration span) const noexcept {
    try {
      return !std::holds_alternative<Lost>(store_.extend(claim_, *grant_, span));
    } catch (...) {  // the store could not be asked: not known to be lost
      return true;
    }
  }

  void complete(const StoredValue& value) {
    doubt_ends_.reset();
    while (true) {
      const Held held = this->ask_store([&]() -> Held { return store_.complete(claim_, *grant_, value); });
      if (std::holds_alternative<Kept>(held)) return this->applied();
      if (std::holds_alternative<Lost>(held)) return lost();
      if (!pause_in_doubt()) return completion_unknown(std::get<Failed>(held));
    }
  }

  void release() noexcept {
    try {
      static_cast<void>(store_.release(claim_, *grant_));
    } catch (...) {  // then it ends by itself
    }
  }

  void lost() {
    this->in_progress({ErrorClass::transient, std::string{code::lease_lost},
                       "the lease ended while the handler was at work, and another delivery took over"},
                      {});
  }

  void completion_unknown(Failed failed) {
    failed.failure.code = code::completion_unknown;
    failed.failure.message = "the effect was made, but its record was not: " + failed.failure.message;
    failed.fault = Fault::store;
    this->ask_redelivery(std::move(failed), "");
  }

  Store& store_;
  Claim claim_;
  Resolved resolved_ = Resolved::no;
  std::optional<Grant> grant_ = {};
  std::optional<StoredValue> made_ = {};  ///< the effect's value, once there is an effect
  std::optional<typename Decisions<Terms>::TimePoint> doubt_ends_ = {};
};

}  // namespace idem::detail
