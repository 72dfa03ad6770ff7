// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/dead_letter.hpp>
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

/// Whether a COMMIT in doubt was cleared up.
enum class Resolved { no, yes };

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

// clang 14 deduces no aggregates.
template <class Policy, class RedeliverPolicy, class Observer>
DeliveryTerms(const ConsumerOptions&, const Policy&, const RedeliverPolicy&, Observer&, const Runtime&,
              SharedEngine&) -> DeliveryTerms<Policy, RedeliverPolicy, Observer>;

/// What one call knows, and what it may come to: the part of the way that is the same in every mode.
template <class Terms>
class Decisions {
  static constexpr bool watched =
      !std::is_same_v<std::remove_cvref_t<decltype(std::declval<Terms&>().observer)>, NoObserver>;

 public:
  Decisions(const Terms& terms, const Key& key, const Event& event, const std::stop_token& stop)
      : terms_{terms},
        key_{key},
        event_{event},
        stop_{stop},
        loop_{terms.policy},
        began_{watched ? now() : TimePoint{}} {}

  [[nodiscard]] std::uint32_t attempts() const noexcept { return attempts_; }

  /// Gives what is to be dead-lettered to the sink: acknowledged once it is recorded there, else brought back. A
  /// key that the server refuses can be no record's either.
  ///
  /// Throws: ConfigurationError — the sink's.
  template <class Sink>
  void keep(Sink& sink, Conclusion& conclusion, std::uint32_t attempts) const {
    if (conclusion.action != Action::dead_letter || conclusion.failure->code == code::invalid_key) return;
    try {
      sink.record(DeadLetter{key_, event_, *conclusion.failure, attempts});
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception& e) {
      return not_kept(conclusion, e.what());
    } catch (...) {
      return not_kept(conclusion, "the sink threw something that is no std::exception");
    }
    conclusion.action = Action::acknowledge;
    tell({.what = Observed::dead_lettered, .key = key_, .event = event_, .failure = &*conclusion.failure});
  }

  /// The last thing that is told of a call.
  void tell_decided(const Conclusion& conclusion) const {
    if constexpr (watched)
      tell({.what = Observed::decided,
            .key = key_,
            .event = event_,
            .failure = conclusion.failure ? &*conclusion.failure : nullptr,
            .delay = conclusion.redeliver_after,
            .elapsed = now() - began_,
            .status = conclusion.status,
            .action = conclusion.action,
            .resolved_in_doubt = conclusion.resolved_in_doubt});
  }

  void tell_value_not_decoded() const noexcept {
    tell({.what = Observed::value_not_decoded, .key = key_, .event = event_});
  }

 protected:
  using TimePoint = std::chrono::steady_clock::time_point;

  [[nodiscard]] Claim claim() const {
    return {.key = key_,
            .fingerprint = event_.fingerprint,
            .on_concurrent = terms_.options.on_concurrent,
            .wait_limit = terms_.options.wait_limit,
            .window = terms_.options.window,
            .occurred_at = event_.occurred_at,
            .delivered = event_.delivery_count > 1 ? Delivered::again : Delivered::first,
            .stop = stop_};
  }

  /// What a store should not throw is its own fault, and must not end the worker.
  template <class Verb>
  [[nodiscard]] static auto ask_store(Verb verb) -> decltype(verb()) {
    try {
      return verb();
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception& e) {
      return Failed{.failure = {ErrorClass::transient, {}, e.what()}, .fault = Fault::store};
    } catch (...) {
      return Failed{
          .failure = {ErrorClass::transient, {}, "the store threw something that is no std::exception"},
          .fault = Fault::store};
    }
  }

  [[nodiscard]] bool decided() const noexcept { return conclusion_.has_value(); }

  /// Counts the call's start, where the store does. False: the call is decided, and the handler must not
  /// start.
  template <class Store>
  [[nodiscard]] bool may_start(Store& store, const Claim& claim) {
    if constexpr (CountingStore<Store>) {
      if (terms_.options.attempts == Attempts::by_transport || start_) return true;
      Started started = ask_store([&]() -> Started { return store.start(claim); });
      if (auto* failed = std::get_if<Failed>(&started)) {
        failed->fault = Fault::store;
        ask_redelivery(std::move(*failed), "");
        return false;
      }
      start_ = std::get<Start>(started);
      if (start_->before >= terms_.redeliver.policy().attempts_allowed()) {
        reject(
            {ErrorClass::permanent, std::string{code::crashed},
             fmt::format(
                 "the handler was started {} time(s) before, and neither finished nor failed for the last time",
                 start_->before)});
        start_end_ = StartEnd::not_counted;
        return false;
      }
    }
    return true;
  }

  /// Tells how the counted start ended; what cannot be told now looks like a crash.
  template <class Store>
  void settle_start(Store& store, const Claim& claim) noexcept {
    if constexpr (CountingStore<Store>) {
      if (!start_ || !start_end_) return;
      try {
        static_cast<void>(store.end(claim, *start_, *start_end_));
      } catch (...) {
      }
    }
  }

  [[nodiscard]] Conclusion end(Resolved resolved) {
    conclusion_->resolved_in_doubt = resolved == Resolved::yes;
    return *std::move(conclusion_);
  }

  void applied() {
    loop_.succeeded();
    conclude({.status = Status::applied, .action = Action::acknowledge});
  }

  /// A committed row holds the key.
  void found(Found row) {
    if (comparable(row.fingerprint, event_.fingerprint)) {
      if (row.fingerprint != event_.fingerprint) return mismatch(row.fingerprint);
    } else {
      tell({.what = Observed::fingerprint_not_compared, .key = key_, .event = event_});
    }
    conclude({.status = Status::duplicate, .action = Action::acknowledge, .stored = std::move(row.value)});
  }

  /// The row was committed by the handler itself, in an earlier attempt of this call: its effect may be a part of it.
  void committed_by_handler() {
    reject(
        {ErrorClass::permanent, std::string{code::transaction_ended_by_handler},
         "the handler committed the transaction itself, in this call: what it did since then is not stored"});
  }

  void busy() {
    if (stop_.stop_requested()) return cancel();
    in_progress({ErrorClass::transient, "55P03", "another delivery of this event is at work"},
                terms_.options.wait_limit);
  }

  void leased(const Leased& lease) {
    in_progress({ErrorClass::transient, {}, "another delivery of this event is at work, and holds a lease"},
                lease.rest);
  }

  void beyond_window() {
    reject(
        {ErrorClass::permanent, std::string{code::beyond_window},
         "the event is older than the window in which keys count: whether it was handled before is forgotten"});
  }

  /// A failure: tried again in this call, left to redelivery, or final.
  void failed(Failed failed) {
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
    if (stop_.stop_requested()) return cancel();
    const ErrorClass kind =
        failed.failure.kind == ErrorClass::in_doubt ? ErrorClass::reconnect : failed.failure.kind;
    const RetryStep step = ask_policy(kind, failed.retry_after);
    follow(step, std::move(failed));
  }

  [[nodiscard]] RetryStep ask_policy(ErrorClass kind, std::optional<Duration> retry_after = {}) {
    return loop_.failed({.kind = kind, .retry_after = retry_after, .hold_left = hold_left()}, now(),
                        terms_.engine);
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
    start_end_ = failed.fault == Fault::message ? StartEnd::failed : StartEnd::not_counted;
    const RetryState state = delivery_state(failed.retry_after);
    const bool may_reject = failed.fault == Fault::message && attempts_ > 0;
    const RetryDecision decision =
        may_reject ? terms_.redeliver.decide(state) : terms_.redeliver.give_back(state);
    if (decision.verdict == RetryVerdict::stop) {
      failed.failure.message += fmt::format("; given up on delivery {}", state.failures);
      return reject(std::move(failed.failure));
    }
    conclude({.status = Status::deferred,
              .action = Action::redeliver,
              .redeliver_after = sample(decision.lo, decision.hi, terms_.engine),
              .failure = std::move(failed.failure)});
  }

  /// Somebody else is at work. `at_least`: when it is worth coming back; nullopt: nobody knows.
  void in_progress(Failure failure, std::optional<Duration> at_least) {
    start_end_ = StartEnd::not_counted;
    const RetryDecision decision = terms_.redeliver.give_back(delivery_state({}));
    const Duration delay = sample(decision.lo, decision.hi, terms_.engine);
    conclude({.status = Status::in_progress,
              .action = Action::redeliver,
              .redeliver_after = at_least ? (std::max)(delay, *at_least) : delay,
              .failure = std::move(failure)});
  }

  void reject(Failure failure) {
    start_end_ = StartEnd::failed;
    conclude({.status = Status::rejected, .action = Action::dead_letter, .failure = std::move(failure)});
  }

  void cancel() {
    start_end_ = StartEnd::not_counted;
    conclude({.status = Status::deferred,
              .action = Action::redeliver,
              .failure = Failure{ErrorClass::cancelled, {}, "the caller asked for the message back"}});
  }

  void conclude(Conclusion conclusion) { conclusion_ = std::move(conclusion); }

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

  const Terms& terms_;
  const Key& key_;
  const Event& event_;
  const std::stop_token& stop_;
  std::uint32_t attempts_ = 0;

 private:
  void not_kept(Conclusion& conclusion, std::string_view why) const {
    conclusion.failure->message += fmt::format("; its dead letter could not be recorded: {}", why);
    const RetryDecision decision = terms_.redeliver.give_back(delivery_state({}));
    conclusion.action = Action::redeliver;
    conclusion.redeliver_after = sample(decision.lo, decision.hi, terms_.engine);
    tell({.what = Observed::dead_letter_failed,
          .key = key_,
          .event = event_,
          .failure = &*conclusion.failure});
  }

  void mismatch(const Fingerprint& stored) {
    const bool acknowledged = terms_.options.on_mismatch == Mismatch::acknowledge;
    conclude(
        {.status = Status::mismatch,
         .action = acknowledged ? Action::acknowledge : Action::dead_letter,
         .failure = Failure{
             ErrorClass::permanent, std::string{code::mismatch},
             fmt::format(
                 "the event id was used by a message that says something else: stored fingerprint {}, this one {}",
                 stored.to_hex(), event_.fingerprint.to_hex())}});
  }

  [[nodiscard]] RetryState delivery_state(std::optional<Duration> retry_after) const {
    const auto by_transport = static_cast<std::uint64_t>((std::max<std::int64_t>)(1, event_.delivery_count));
    return {.failures = start_ ? start_->before + 1 : by_transport, .retry_after = retry_after};
  }

  [[nodiscard]] std::optional<Duration> hold_left() const {
    if (!event_.visible_until) return std::nullopt;
    return saturating_subtract(event_.visible_until->time_since_epoch(), now().time_since_epoch());
  }

  RetryLoop<std::remove_cvref_t<decltype(std::declval<Terms&>().policy)>> loop_;
  TimePoint began_;
  std::optional<Conclusion> conclusion_ = {};
  std::optional<Start> start_ = {};
  std::optional<StartEnd> start_end_ = {};  ///< nullopt: applied
};

}  // namespace idem::detail
