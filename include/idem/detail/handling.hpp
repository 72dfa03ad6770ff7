// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include <idem/codec.hpp>
#include <idem/detail/batch_run.hpp>
#include <idem/detail/delivery.hpp>
#include <idem/detail/lease_delivery.hpp>
#include <idem/detail/parts.hpp>
#include <idem/detail/text.hpp>
#include <idem/detail/ticker.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/handler.hpp>
#include <idem/key.hpp>
#include <idem/options.hpp>
#include <idem/outcome.hpp>
#include <idem/store.hpp>

namespace idem::detail {

inline constexpr MaxAttempts one_attempt{1};

/// What a consumer is made of, and how it handles one message.
template <class Store, class Handler, class... Parts>
class Handling {
 protected:
  Handling(std::string its_name, Store& its_store, Handler its_handler, Parts... its_parts)
      : name_{std::move(its_name)},
        store_{its_store},
        handler_{std::move(its_handler)},
        parts_{std::forward<Parts>(its_parts)...},
        runtime_{with_defaults(given_runtime())},
        engine_{runtime_.engine} {
    Key::check_consumer(name_);
    check(options());
    check_keep_visible();
  }
  Handling(const Handling&) = delete;
  Handling& operator=(const Handling&) = delete;
  ~Handling() = default;

  template <class Kind>
  static constexpr std::size_t count = parts_of_kind<Kind, Parts...>;

  using Form = HandlerForm;

  template <class S>
  struct TransactionOf {
    using type = NoTransaction;
  };
  template <TransactionalStore S>
  struct TransactionOf<S> {
    using type = typename S::Transaction;
  };
  using Transaction = typename TransactionOf<Store>::type;

  template <class S>
  struct StatementsOf {
    using type = NoStatements;
  };
  template <StatementStore S>
  struct StatementsOf<S> {
    using type = typename S::Statements;
  };

  template <class Message>
  static constexpr Form form = form_of<Handler, Transaction, Message, typename StatementsOf<Store>::type>();
  template <class Message>
  static constexpr bool in_store = form<Message> == Form::transactional || form<Message> == Form::bulk ||
                                   form<Message> == Form::statements;
  template <class Message>
  static constexpr bool fits = (in_store<Message> && TransactionalStore<Store>) ||
                               (form<Message> == Form::lease && LeaseStore<Store>);

  template <class Message>
  [[nodiscard]] static constexpr bool accepts() {
    if constexpr (TransactionalStore<Store> || LeaseStore<Store>) {
      static_assert(
          form<Message> != Form::changes_itself,
          "idem: the handler changes itself when it is called (a mutable lambda?): many threads call it, so it must be callable as const; keep its state outside and capture a reference");
      static_assert(
          form<Message> != Form::none,
          "idem: the handler does not fit this message: a handler is called with (Store::Transaction&, const Message&), for an effect in the store's own database, or with (idem::Lease&, const Message&), for an effect outside of it; or with (const Message&) alone, to return the store's Statements");
      static_assert(
          form<Message> != Form::lease || LeaseStore<Store>,
          "idem: the handler takes an idem::Lease&, and this store lends none: take its Transaction&, or use a store that models idem::LeaseStore");
    }
    return fits<Message>;
  }

  template <class Message>
  using Result = result_t<typename Returned<form<Message>, Handler, Transaction, Message>::type>;

  template <class Message>
  [[nodiscard]] Outcome<Result<Message>> deliver(const Key& key, const Event& event, const Message& message,
                                                 const std::stop_token& stop,
                                                 Prior<Result<Message>> prior) const {
    using R = Result<Message>;
    constexpr bool returns_nothing = std::is_same_v<R, std::monostate>;
    static_assert(
        returns_nothing || Encodable<R>,
        "idem: what this handler returns cannot be stored: specialise idem::Codec for it, or return nothing");
    const auto terms = this->terms();
    std::optional<R> result = std::move(prior.result);
    const auto work = [&](auto& with) -> StoredValue {
      [[maybe_unused]] const auto held = keep_visible(key, event);
      result.reset();
      if constexpr (form<Message> == Form::bulk) {
        const Key* const one[] = {&key};
        if constexpr (requires { with.working_on(one); }) with.working_on(one);
      }
      return run_handler(with, message, result);
    };
    auto delivery = [&] {
      if constexpr (in_store<Message>)
        return Delivery{store_, terms, key, event, stop};
      else
        return LeaseDelivery{store_, terms, key, event, stop};
    }();
    if constexpr (in_store<Message>) {
      if (prior.in_doubt) delivery.begin_in_doubt(*std::move(prior.in_doubt));
      if (prior.token) delivery.remember(*prior.token);
    }
    if constexpr (form<Message> == Form::statements) {
      [[maybe_unused]] const auto held = keep_visible(key, event);
      delivery.try_at_once([&] { return std::invoke(handler_, message); });
    }
    Conclusion end = delivery.run(work);
    return outcome_of(std::move(end), delivery, prior.starts + delivery.attempts(), std::move(result));
  }

  /// Runs the handler for one message, keeps what it returns, and encodes it.
  template <class With, class Message>
  [[nodiscard]] StoredValue run_handler(With& with, const Message& message,
                                        std::optional<Result<Message>>& result) const {
    using R = Result<Message>;
    if constexpr (form<Message> == Form::bulk) {
      const Message* const one[] = {&message};
      std::invoke(handler_, with, std::span<const Message* const>{one});
      return std::nullopt;
    } else if constexpr (form<Message> == Form::statements) {
      run_statements(with, std::invoke(handler_, message));
      return std::nullopt;
    } else if constexpr (std::is_same_v<R, std::monostate>) {
      std::invoke(handler_, with, message);
      return std::nullopt;
    } else {
      result.emplace(std::invoke(handler_, with, message));
      return Codec<R>::encode(*result);
    }
  }

  template <class R, class Way>
  [[nodiscard]] Outcome<R> outcome_of(Conclusion end, const Way& way, std::uint32_t attempts,
                                      std::optional<R> result) const {
    Outcome<R> outcome{.attempts = attempts};
    if constexpr (!std::is_same_v<R, std::monostate>) {
      if (end.status == Status::applied) hand_over(std::move(result), outcome.value);
      if (end.status == Status::duplicate && end.stored) {
        outcome.value = decoded<R>(*end.stored, way);
        outcome.replayed = outcome.value.has_value();
      }
    }
    if constexpr (count < IsDeadLetterSink >> 0)
      way.keep(std::get<index_of<IsDeadLetterSink, Parts...>()>(parts_), end, attempts);
    way.tell_decided(end);
    outcome.status = end.status;
    outcome.action = end.action;
    outcome.redeliver_after = end.redeliver_after;
    outcome.resolved_in_doubt = end.resolved_in_doubt;
    outcome.failure = std::move(end.failure);
    return outcome;
  }

  /// A result whose move throws is lost, and not the outcome with it: the effect is committed.
  template <class R>
  static void hand_over(std::optional<R>&& from, std::optional<R>& to) noexcept {
    try {
      to = std::move(from);
    } catch (...) {
      to.reset();
    }
  }

  [[nodiscard]] auto terms() const {
    return DeliveryTerms{options(), policy(), redeliver(), observer(), runtime_, engine_};
  }

  /// Keeps the transport's hold for as long as what it returns lives.
  [[nodiscard]] auto keep_visible(const Key& key, const Event& event) const {
    if constexpr (count<IsKeepVisible> == 0) {
      return std::monostate{};
    } else {
      const KeepVisible& keep = std::get<index_of<IsKeepVisible, Parts...>()>(parts_);
      return Ticker{keep.every, [this, &keep, &key, &event] {
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
          escaped(name_), event.delivery_count)};
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw ConfigurationError{fmt::format("consumer \"{}\": {}", escaped(name_), what)};
  }

  void check_keep_visible() const {
    if constexpr (count < IsKeepVisible >> 0) {
      const KeepVisible& keep = std::get<index_of<IsKeepVisible, Parts...>()>(parts_);
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

  [[nodiscard]] const ConsumerOptions& options() const noexcept {
    return detail::part_or<IsOptions>(default_options, parts_);
  }
  [[nodiscard]] const auto& policy() const noexcept {
    return detail::part_or<IsRetryPolicy>(one_attempt, parts_);
  }
  [[nodiscard]] const auto& redeliver() const noexcept {
    return detail::part_or<IsRedeliver>(default_redeliver, parts_);
  }
  [[nodiscard]] auto& observer() const noexcept { return detail::part_or<IsObserver>(no_observer, parts_); }
  [[nodiscard]] Runtime given_runtime() const {
    const Runtime real;
    return detail::part_or<IsRuntime>(real, parts_);
  }

  static constexpr ConsumerOptions default_options{};
  static constexpr NoObserver no_observer{};

  std::string name_;
  Store& store_;
  Handler handler_;
  mutable std::tuple<Parts...> parts_;
  Runtime runtime_;
  mutable SharedEngine engine_;
};

}  // namespace idem::detail
