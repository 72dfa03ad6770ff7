// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/core.h>

#include <idem/codec.hpp>
#include <idem/detail/delivery.hpp>
#include <idem/detail/lease_delivery.hpp>
#include <idem/detail/parts.hpp>
#include <idem/detail/ticker.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/handler.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/outcome.hpp>
#include <idem/store.hpp>

namespace idem {

namespace detail {

inline constexpr MaxAttempts one_attempt{1};

}  // namespace detail

/// Wraps a message handler so that the effect of every event happens once, however often it is delivered.
///
/// A handler is `(Store::Transaction&, const Message&)`: its effect is in the store's own database, committed
/// together with the event's key. What it returns is stored with the key and given to duplicates.
///
/// `Parts`, in any order, at most one of each kind: a retry policy (how often to try within the call; one
/// attempt if left out), `Redeliver` (when the transport should bring a message back; backs off without a
/// limit if left out), an Observer, a DeadLetterSink, KeepVisible, ConsumerOptions, Runtime. Observers and
/// sinks given as variables are referred to, everything else is copied.
///
/// Guarantee: see the table in README. An outcome says `applied` or `duplicate` only if the effect is
/// committed. Thread safety: any number of threads; the handler is called by all of them. The store outlives
/// the consumer.
template <class Store, class Handler, class... Parts>
class IdempotentConsumer {
  static_assert(
      TransactionalStore<Store>,
      "idem: this type is no store: an IdempotentConsumer takes a store by reference, such as idem::PostgresStore or idem::MemoryStore<>, or any type that models idem::TransactionalStore or idem::LeaseStore");
  static_assert(
      (detail::is_part<std::remove_reference_t<Parts>> && ...),
      "idem: this argument is no part of a consumer: a part is a retry policy, Redeliver{...}, an Observer, a DeadLetterSink, KeepVisible, ConsumerOptions or Runtime");
  template <class Kind>
  static constexpr std::size_t count = detail::parts_of_kind<Kind, Parts...>;
  static_assert(
      count<detail::IsRetryPolicy> <= 1,
      "idem: a consumer takes one retry policy: join its stages with |, and wrap what is meant for the transport in Redeliver{...}");
  static_assert(count<detail::IsRedeliver> <= 1 && count<detail::IsObserver> <= 1 &&
                    count<detail::IsOptions> <= 1 && count<detail::IsRuntime> <= 1,
                "idem: a consumer takes at most one part of each kind");
  static_assert(count<detail::IsDeadLetterSink> == 0,
                "idem: a consumer does not take a DeadLetterSink yet: act on Action::dead_letter yourself");

 public:
  /// `its_name` is part of every key and stored for ever: give it a version ("charge-order.v1"), and keep it, for
  /// under another name every replayed event runs again.
  ///
  /// Throws: InvalidKey — the name cannot be part of a key; ConfigurationError — options that contradict each
  /// other.
  IdempotentConsumer(std::string its_name, Store& its_store, Handler its_handler, Parts... its_parts)
      : name_{std::move(its_name)},
        store_{its_store},
        handler_{std::move(its_handler)},
        parts_{std::forward<Parts>(its_parts)...},
        runtime_{detail::with_defaults(part_or<detail::IsRuntime>(Runtime{}))},
        engine_{runtime_.engine} {
    Key::check_consumer(name_);
    check(options());
    check_keep_visible();
    using Policy = std::remove_cvref_t<decltype(policy())>;
    static_assert(
        is_bounded_v<Policy>,
        "idem: this retry policy never ends: add MaxAttempts{n} or MaxElapsed{d}, or use Intervals{...}; it is followed while the message is held");
  }

  IdempotentConsumer(const IdempotentConsumer&) = delete;
  IdempotentConsumer& operator=(const IdempotentConsumer&) = delete;

  /// Handles a message that `event_of` describes. See `process`.
  template <class Message>
  [[nodiscard]] auto operator()(const Message& message, std::stop_token stop = {}) const {
    static_assert(
        Identified<Message>,
        "idem: no event_of for this message: write `idem::Event event_of(const Message&)` in the message's own namespace, or call process(event, message)");
    if constexpr (Identified<Message>) {
      std::optional<Event> event;
      try {
        event.emplace(event_of(message));
      } catch (const std::exception& e) {
        return rejected<Message>(code::event_of_failed, e.what());
      } catch (...) {
        return rejected<Message>(code::event_of_failed, "event_of threw something that is no std::exception");
      }
      return process(*event, message, std::move(stop));
    } else {
      return Outcome<>{};
    }
  }

  /// Handles a message: reserves its key, runs the handler and commits both, or says what was found.
  ///
  /// Throws: ConfigurationError — the set-up is wrong, not the message: stop the worker. Nothing else.
  template <class Message>
  [[nodiscard]] auto process(const Event& event, const Message& message, std::stop_token stop = {}) const {
    if constexpr (accepts<Message>()) {
      std::optional<Key> key;
      try {
        key.emplace(event.tenant, name_, event.id);
      } catch (const InvalidKey& e) {
        return rejected<Message>(code::invalid_key, e.what());
      }
      demand_delivery_count(event);
      return deliver(*key, event, message, stop);
    } else {
      return Outcome<>{};  // an error has said why; no more of them
    }
  }

 private:
  using Form = detail::HandlerForm;

  template <class S>
  struct TransactionOf {
    using type = detail::NoTransaction;
  };
  template <TransactionalStore S>
  struct TransactionOf<S> {
    using type = typename S::Transaction;
  };
  using Transaction = typename TransactionOf<Store>::type;

  template <class Message>
  static constexpr Form form = detail::form_of<Handler, Transaction, Message>();
  template <class Message>
  static constexpr bool fits = (form<Message> == Form::transactional && TransactionalStore<Store>) ||
                               (form<Message> == Form::lease && LeaseStore<Store>);

  template <class Message>
  [[nodiscard]] static constexpr bool accepts() {
    if constexpr (TransactionalStore<Store> || LeaseStore<Store>) {
      static_assert(
          form<Message> != Form::changes_itself,
          "idem: the handler changes itself when it is called (a mutable lambda?): many threads call it, so it must be callable as const; keep its state outside and capture a reference");
      static_assert(
          form<Message> != Form::none,
          "idem: the handler does not fit this message: a handler is called with (Store::Transaction&, const Message&), for an effect in the store's own database, or with (idem::Lease&, const Message&), for an effect outside of it");
      static_assert(
          form<Message> != Form::lease || LeaseStore<Store>,
          "idem: the handler takes an idem::Lease&, and this store lends none: take its Transaction&, or use a store that models idem::LeaseStore");
    }
    return fits<Message>;
  }

  template <class Message>
  using Result =
      detail::result_t<typename detail::Returned<form<Message>, Handler, Transaction, Message>::type>;

  template <class Message>
  [[nodiscard]] Outcome<Result<Message>> deliver(const Key& key, const Event& event, const Message& message,
                                                 const std::stop_token& stop) const {
    using R = Result<Message>;
    constexpr bool returns_nothing = std::is_same_v<R, std::monostate>;
    static_assert(
        returns_nothing || Encodable<R>,
        "idem: what this handler returns cannot be stored: specialise idem::Codec for it, or return nothing");
    const detail::DeliveryTerms terms{options(), policy(), redeliver(), observer(), runtime_, engine_};
    std::optional<R> result;
    const auto work = [&](auto& with) -> StoredValue {
      [[maybe_unused]] const auto held = keep_visible(key, event);
      result.reset();
      if constexpr (returns_nothing) {
        std::invoke(handler_, with, message);
        return std::nullopt;
      } else {
        result.emplace(std::invoke(handler_, with, message));
        return Codec<R>::encode(*result);
      }
    };
    auto delivery = [&] {
      if constexpr (form<Message> == Form::transactional)
        return detail::Delivery{store_, terms, key, event, stop};
      else
        return detail::LeaseDelivery{store_, terms, key, event, stop};
    }();
    detail::Conclusion end = delivery.run(work);

    Outcome<R> outcome{.attempts = delivery.attempts()};
    if constexpr (!returns_nothing) {
      if (end.status == Status::applied) outcome.value = std::move(result);
      if (end.status == Status::duplicate && end.stored) {
        outcome.value = decoded<R>(*end.stored, delivery);
        outcome.replayed = outcome.value.has_value();
      }
    }
    delivery.tell_decided(end);
    outcome.status = end.status;
    outcome.action = end.action;
    outcome.redeliver_after = end.redeliver_after;
    outcome.resolved_in_doubt = end.resolved_in_doubt;
    outcome.failure = std::move(end.failure);
    return outcome;
  }

  /// Keeps the transport's hold for as long as what it returns lives.
  [[nodiscard]] auto keep_visible(const Key& key, const Event& event) const {
    if constexpr (count<detail::IsKeepVisible> == 0) {
      return std::monostate{};
    } else {
      const KeepVisible& keep = std::get<detail::index_of<detail::IsKeepVisible, Parts...>()>(parts_);
      return detail::Ticker{keep.every, [this, &keep, &key, &event] {
                              try {
                                keep.extend();
                              } catch (...) {
                                tell_keep_visible_failed(key, event);
                              }
                            }};
    }
  }

  void tell_keep_visible_failed(const Key& key, const Event& event) const noexcept {
    try {
      observer().observe({.what = Observed::keep_visible_failed, .key = key, .event = event});
    } catch (...) {  // an observer never changes an outcome
    }
  }

  template <class R, class Delivery>
  [[nodiscard]] static std::optional<R> decoded(const std::string& stored, const Delivery& delivery) {
    try {
      return Codec<R>::decode(stored);
    } catch (...) {  // it was committed all the same
      delivery.tell_value_not_decoded();
      return std::nullopt;
    }
  }

  template <class Message>
  [[nodiscard]] static auto rejected(std::string_view code, std::string_view why) {
    if constexpr (accepts<Message>())
      return Outcome<Result<Message>>{
          .status = Status::rejected,
          .action = Action::dead_letter,
          .failure = Failure{ErrorClass::permanent, std::string{code}, std::string{why}}};
    else
      return Outcome<>{};
  }

  void demand_delivery_count(const Event& event) const {
    if constexpr (std::remove_cvref_t<decltype(redeliver())>::has_limit) {
      if (event.delivery_count > 0 || options().attempts == Attempts::counted_by_store) return;
      throw ConfigurationError{fmt::format(
          "consumer \"{}\": its Redeliver stops after a number of deliveries, and this event's delivery_count is {}; set it in event_of (1 = first delivery), or give Redeliver no limit",
          detail::escaped(name_), event.delivery_count)};
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw ConfigurationError{fmt::format("consumer \"{}\": {}", detail::escaped(name_), what)};
  }

  void check_keep_visible() const {
    if constexpr (count < detail::IsKeepVisible >> 0) {
      const KeepVisible& keep = std::get<detail::index_of<detail::IsKeepVisible, Parts...>()>(parts_);
      if (keep.every <= Duration{0}) refuse("KeepVisible::every is not above zero");
      if (!keep.extend) refuse("KeepVisible::extend is empty: give it what extends the transport's hold");
    }
  }

  void check(const ConsumerOptions& options) const {
    if (options.wait_limit < std::chrono::milliseconds{1})
      refuse("wait_limit is below 1 ms; use on_concurrent = Concurrent::defer to wait not at all");
    if (options.lease && *options.lease <= Duration{0})
      refuse("lease is not above zero; nullopt is what says \"never taken over\"");
    if (options.window && *options.window <= Duration{0})
      refuse("window is not above zero; nullopt is what says \"for ever\"");
    if (options.attempts == Attempts::counted_by_store && !CountingStore<Store>)
      refuse(
          "this store does not count starts: use Attempts::by_transport, or a store that models idem::CountingStore");
  }

  template <class Kind>
  [[nodiscard]] const auto& part_or(const auto& fallback) const noexcept {
    return detail::part_or<Kind>(fallback, parts_);
  }
  [[nodiscard]] const ConsumerOptions& options() const noexcept {
    return part_or<detail::IsOptions>(default_options);
  }
  [[nodiscard]] const auto& policy() const noexcept {
    return part_or<detail::IsRetryPolicy>(detail::one_attempt);
  }
  [[nodiscard]] const auto& redeliver() const noexcept {
    return part_or<detail::IsRedeliver>(default_redeliver);
  }
  [[nodiscard]] auto& observer() const noexcept {
    return detail::part_or<detail::IsObserver>(no_observer, parts_);
  }

  static constexpr ConsumerOptions default_options{};
  static constexpr NoObserver no_observer{};

  std::string name_;
  Store& store_;
  Handler handler_;
  mutable std::tuple<Parts...> parts_;
  Runtime runtime_;
  mutable detail::SharedEngine engine_;
};

template <class Store, class Handler, class... Parts>
IdempotentConsumer(std::string, Store&, Handler, Parts&&...)
    -> IdempotentConsumer<Store, Handler, detail::held_part_t<Parts>...>;

}  // namespace idem
