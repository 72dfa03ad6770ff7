// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/observer.hpp>
#include <idem/options.hpp>
#include <idem/outcome.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>
#include <idem/store.hpp>

namespace idem::detail {

/// What a delivery came to, without the handler's value.
struct Conclusion {
  Status status = Status::deferred;
  Action action = Action::redeliver;
  Duration redeliver_after{};
  bool resolved_in_doubt = false;
  StoredValue stored = {};  ///< a duplicate's
  std::optional<Failure> failure = {};
};

/// One engine for all threads of a consumer.
class SharedEngine {
 public:
  explicit SharedEngine(std::function<std::uint64_t()> engine) : engine_{std::move(engine)} {}
  std::uint64_t operator()() {
    const std::lock_guard lock{mutex_};
    return engine_();
  }

 private:
  std::mutex mutex_;
  std::function<std::uint64_t()> engine_;
};

/// What a consumer's deliveries have in common.
template <class Policy, class RedeliverPolicy, class Observer>
struct DeliveryTerms {
  const ConsumerOptions& options;
  const Policy& policy;
  const RedeliverPolicy& redeliver;
  Observer& observer;
  const Runtime& runtime;
  SharedEngine& engine;
};

/// The way of one message: claim, handler, commit, and again until it is decided.
template <class Store, class Terms>
class Delivery {
 public:
  using Transaction = typename Store::Transaction;

  Delivery(Store& store, const Terms& terms, const Key& key, const Event& event, const std::stop_token& stop)
      : store_{store},
        terms_{terms},
        key_{key},
        event_{event},
        stop_{stop},
        claim_{.key = key,
               .fingerprint = event.fingerprint,
               .on_concurrent = terms.options.on_concurrent,
               .wait_limit = terms.options.wait_limit,
               .stop = stop},
        loop_{terms.policy},
        began_{watched ? now() : TimePoint{}} {}

  /// Throws: ConfigurationError.
  [[nodiscard]] Conclusion run(Effect<Transaction> effect) {
    const auto at_work = [&](Transaction& tx) -> StoredValue {
      settle_doubt();
      ++attempts_;
      return effect(tx);
    };
    while (!conclusion_) {
      if (stop_.stop_requested()) {
        cancel();
        break;
      }
      std::visit([this](auto&& met) { decide(std::move(met)); }, apply(at_work));
    }
    conclusion_->resolved_in_doubt = resolved_in_doubt_;
    tell({.what = Observed::decided,
          .key = key_,
          .event = event_,
          .failure = conclusion_->failure ? &*conclusion_->failure : nullptr,
          .delay = conclusion_->redeliver_after,
          .elapsed = watched ? now() - began_ : Duration{},
          .status = conclusion_->status,
          .action = conclusion_->action,
          .resolved_in_doubt = resolved_in_doubt_});
    return *std::move(conclusion_);
  }

  [[nodiscard]] std::uint32_t attempts() const noexcept { return attempts_; }

  void tell_value_not_decoded() const noexcept {
    tell({.what = Observed::value_not_decoded, .key = key_, .event = event_});
  }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr bool watched =
      !std::is_same_v<std::remove_cvref_t<decltype(std::declval<Terms&>().observer)>, NoObserver>;

  /// How long the fate of a lost COMMIT is looked for. Its transaction may still be running.
  static constexpr Duration doubt_limit = std::chrono::seconds{5};
  static constexpr Duration doubt_pause = std::chrono::milliseconds{100};

  /// Thrown through the store to roll back a claim that turned out not to be needed.
  struct GiveBack {};

  /// What a store should not throw is its own fault, and must not end the worker.
  [[nodiscard]] Applied apply(Effect<Transaction> effect) {
    try {
      return store_.apply(claim_, effect);
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception& e) {
      return Failed{.failure = {ErrorClass::transient, {}, e.what()}, .fault = Fault::store};
    }
  }

  void decide(Committed) {
    loop_.succeeded();
    conclude({.status = Status::applied, .action = Action::acknowledge});
  }

  void decide(Found found) {
    if (claim_.doubted && found.token == *claim_.doubted) {
      resolved_in_doubt_ = true;
      return decide(Committed{});
    }
    if (claim_.doubted) resolved_in_doubt_ = true;
    if (comparable(found.fingerprint, event_.fingerprint)) {
      if (found.fingerprint != event_.fingerprint) return mismatch(found.fingerprint);
    } else {
      tell({.what = Observed::fingerprint_not_compared, .key = key_, .event = event_});
    }
    conclude({.status = Status::duplicate, .action = Action::acknowledge, .stored = std::move(found.value)});
  }

  void decide(Busy) {
    if (stop_.stop_requested()) return cancel();
    if (claim_.doubted) return unresolved();
    in_progress({ErrorClass::transient, "55P03", "another delivery of this event is at work"});
  }

  void decide(InDoubt in_doubt) {
    tell({.what = Observed::in_doubt, .key = key_, .event = event_, .failure = &in_doubt.failure});
    doubt_ = std::move(in_doubt.failure);
    claim_.doubted = in_doubt.token;
    claim_.on_concurrent = Concurrent::wait;
    doubt_ends_ = saturating_add(now(), doubt_limit);
    claim_.wait_limit = doubt_limit;
  }

  void decide(Failed failed) {
    if (claim_.doubted) return look_again();
    if (given_back_) {
      const RetryStep step = *std::exchange(given_back_, std::nullopt);
      return follow(step, {.failure = doubt_, .fault = Fault::store});
    }
    tell({.what = Observed::attempt_failed, .key = key_, .event = event_, .failure = &failed.failure});
    switch (failed.failure.kind) {
      case ErrorClass::permanent: return reject(std::move(failed.failure));
      case ErrorClass::configuration:
        throw ConfigurationError{fmt::format("SQLSTATE {}: {}", failed.failure.code, failed.failure.message)};
      case ErrorClass::cancelled: return cancel();
      case ErrorClass::in_doubt:
      case ErrorClass::reconnect: failed.fault = Fault::store; break;
      case ErrorClass::transient:
      case ErrorClass::throttled: break;
    }
    if (failed.retry == Retry::by_redelivery) return ask_redelivery(std::move(failed), "");
    const RetryStep step = loop_.failed(
        {.kind = failed.failure.kind == ErrorClass::in_doubt ? ErrorClass::reconnect : failed.failure.kind,
         .retry_after = failed.retry_after,
         .hold_left = hold_left()},
        now(), terms_.engine);
    follow(step, std::move(failed));
  }

  /// The key is ours, so a doubted COMMIT of this call did not take effect: the policy is asked whether the
  /// handler starts again at once, in this same transaction.
  void settle_doubt() {
    if (!claim_.doubted) return;
    claim_.doubted.reset();
    claim_.on_concurrent = terms_.options.on_concurrent;
    claim_.wait_limit = terms_.options.wait_limit;
    resolved_in_doubt_ = true;
    const RetryStep step =
        loop_.failed({.kind = ErrorClass::in_doubt, .hold_left = hold_left()}, now(), terms_.engine);
    if (step.retry() && step.delay == Duration{0}) return;
    given_back_ = step;
    throw GiveBack{};
  }

  /// The store could not be asked about a doubt: it may be restarting.
  void look_again() {
    if (stop_.stop_requested()) return cancel();
    const Duration left = doubt_ends_ - now();
    if (left <= Duration{0}) return unresolved();
    sleep(std::min(left, doubt_pause));
    claim_.wait_limit = std::max<Duration>(doubt_ends_ - now(), std::chrono::milliseconds{1});
  }

  void unresolved() {
    in_progress({ErrorClass::in_doubt, std::string{code::in_doubt},
                 "the answer to COMMIT was lost and its fate could not be found out: " + doubt_.message});
  }

  void follow(const RetryStep& step, Failed failed) {
    if (!step.retry()) return ask_redelivery(std::move(failed), to_string(step.decision.reason));
    tell({.what = Observed::retrying,
          .key = key_,
          .event = event_,
          .failure = &failed.failure,
          .delay = step.delay});
    sleep(step.delay);
  }

  /// The call gives up. `why`: what ended its own retries; empty where they were not asked.
  void ask_redelivery(Failed failed, std::string_view why) {
    if (!why.empty())
      failed.failure.message += fmt::format(" ({} after {} attempt(s) in this call)", why, attempts_);
    const RetryState state = delivery_state(failed.retry_after);
    const bool may_reject = failed.fault == Fault::message && attempts_ > 0;
    const RetryDecision decision =
        may_reject ? terms_.redeliver.decide(state) : terms_.redeliver.give_back(state);
    if (decision.verdict == RetryVerdict::stop) {
      failed.failure.message += fmt::format("; given up on delivery {}", event_.delivery_count);
      return reject(std::move(failed.failure));
    }
    conclude({.status = Status::deferred,
              .action = Action::redeliver,
              .redeliver_after = sample(decision.lo, decision.hi, terms_.engine),
              .failure = std::move(failed.failure)});
  }

  void in_progress(Failure failure) {
    const RetryDecision decision = terms_.redeliver.give_back(delivery_state({}));
    conclude({.status = Status::in_progress,
              .action = Action::redeliver,
              .redeliver_after =
                  std::max(sample(decision.lo, decision.hi, terms_.engine), terms_.options.wait_limit),
              .failure = std::move(failure)});
  }

  void mismatch(const Fingerprint& stored) {
    const bool acknowledged = terms_.options.on_mismatch == Mismatch::acknowledge;
    conclude(
        {.status = Status::mismatch,
         .action = acknowledged ? Action::acknowledge : Action::dead_letter,
         .failure = Failure{ErrorClass::permanent, std::string{code::mismatch},
                            fmt::format("the event id was used by a message that says something else: stored "
                                        "fingerprint {}, this one {}",
                                        stored.to_hex(), event_.fingerprint.to_hex())}});
  }

  void reject(Failure failure) {
    conclude({.status = Status::rejected, .action = Action::dead_letter, .failure = std::move(failure)});
  }

  void cancel() {
    const bool doubtful = claim_.doubted.has_value();
    conclude(
        {.status = doubtful ? Status::in_progress : Status::deferred,
         .action = Action::redeliver,
         .failure = Failure{ErrorClass::cancelled, doubtful ? std::string{code::in_doubt} : std::string{},
                            "the caller asked for the message back"}});
  }

  void conclude(Conclusion conclusion) { conclusion_ = std::move(conclusion); }

  [[nodiscard]] RetryState delivery_state(std::optional<Duration> retry_after) const {
    const std::int64_t count = std::max<std::int64_t>(1, event_.delivery_count);
    return {.failures = static_cast<std::uint64_t>(count), .retry_after = retry_after};
  }

  [[nodiscard]] std::optional<Duration> hold_left() const {
    if (!event_.visible_until) return std::nullopt;
    return saturating_subtract(event_.visible_until->time_since_epoch(), now().time_since_epoch());
  }

  [[nodiscard]] TimePoint now() const { return terms_.runtime.clock(); }

  void sleep(Duration delay) const {
    if (delay > Duration{0}) terms_.runtime.sleeper(saturating_add(now(), delay), stop_);
  }

  void tell(Observation observation) const noexcept {
    observation.attempts = attempts_;
    try {
      terms_.observer.observe(observation);
    } catch (...) {  // an observer never changes an outcome
    }
  }

  Store& store_;
  const Terms& terms_;
  const Key& key_;
  const Event& event_;
  const std::stop_token& stop_;
  Claim claim_;
  RetryLoop<std::remove_cvref_t<decltype(std::declval<Terms&>().policy)>> loop_;
  TimePoint began_;
  std::uint32_t attempts_ = 0;
  bool resolved_in_doubt_ = false;
  Failure doubt_ = {};
  TimePoint doubt_ends_{};
  std::optional<RetryStep> given_back_ = {};
  std::optional<Conclusion> conclusion_ = {};
};

}  // namespace idem::detail
