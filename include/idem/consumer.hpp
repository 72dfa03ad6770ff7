// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/batch.hpp>
#include <idem/detail/batching.hpp>
#include <idem/detail/parts.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/handler.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>
#include <idem/store.hpp>

namespace idem {

/// Wraps a message handler so that the effect of every event happens once, however often it is delivered.
///
/// A handler is `(Store::Transaction&, const Message&)`: its effect is in the store's own database, committed
/// together with the event's key. Or it is `(idem::Lease&, const Message&)`: its effect is outside, and it
/// holds the event meanwhile. Or `(Store::Transaction&, std::span<const Message* const>)`, for batches. What
/// these return is stored with the key and given to duplicates. Or it is `(const Message&)` and returns the
/// store's Statements: its effect, said and not done, which a StatementStore runs with claim and commit in one
/// message; it may be called for a duplicate, too.
///
/// `Parts`, in any order, at most one of each kind: a retry policy (how often to try within the call; one
/// attempt if left out), `Redeliver` (when the transport should bring a message back; backs off without a
/// limit if left out), an Observer, a DeadLetterSink (what is rejected or mismatched is recorded there, and
/// acknowledged), KeepVisible, ConsumerOptions, Runtime. Observers and sinks given as variables are referred to,
/// everything else is copied.
///
/// Guarantee: an outcome says `applied` or `duplicate` only if the effect is committed; what may be found, and
/// what follows, is a table in README.
/// Thread safety: any number of threads; the handler is called by all of them. The store outlives the consumer.
template <class Store, class Handler, class... Parts>
class IdempotentConsumer : detail::Batching<Store, Handler, Parts...> {
  using Way = detail::Batching<Store, Handler, Parts...>;
  static_assert(
      TransactionalStore<Store> || LeaseStore<Store>,
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
                    count<detail::IsDeadLetterSink> <= 1 && count<detail::IsOptions> <= 1 &&
                    count<detail::IsRuntime> <= 1,
                "idem: a consumer takes at most one part of each kind");

 public:
  /// `its_name` is part of every key and stored for ever: give it a version ("charge-order.v1"), and keep it,
  /// for under another name every replayed event runs again.
  ///
  /// Throws: InvalidKey — the name cannot be part of a key; ConfigurationError — options that contradict each
  /// other.
  IdempotentConsumer(std::string its_name, Store& its_store, Handler its_handler, Parts... its_parts)
      : Way{std::move(its_name), its_store, std::move(its_handler), std::forward<Parts>(its_parts)...} {
    static_assert(
        is_bounded_v<std::remove_cvref_t<decltype(this->policy())>>,
        "idem: this retry policy never ends: add MaxAttempts{n} or MaxElapsed{d}, or use Intervals{...}; it is followed while the message is held");
  }

  IdempotentConsumer(const IdempotentConsumer&) = delete;
  IdempotentConsumer& operator=(const IdempotentConsumer&) = delete;

  /// As given to the constructor.
  [[nodiscard]] const std::string& name() const noexcept { return this->name_; }

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
        return Way::template rejected<Message>(code::event_of_failed, e.what());
      } catch (...) {
        return Way::template rejected<Message>(code::event_of_failed,
                                               "event_of threw something that is no std::exception");
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
    if constexpr (Way::template accepts<Message>()) {
      std::optional<Key> key;
      try {
        key.emplace(event.tenant, this->name_, event.id);
      } catch (const InvalidKey& e) {
        return Way::template rejected<Message>(code::invalid_key, e.what());
      }
      this->demand_delivery_count(event);
      return this->deliver(*key, event, message, stop, {});
    } else {
      return Outcome<>{};  // an error has said why; no more of them
    }
  }

  /// Handles a batch: fresh events share one transaction where they can, and one that fails costs only itself
  /// (the batch is undone, and its messages are handled one by one). See BatchReport for what to tell the
  /// transport.
  ///
  /// Messages with one ordering_key stop at the first that is not acknowledged; the rest of them is given
  /// back, `held_back`. A message whose `visible_until` passed before its turn is given back unstarted. A key
  /// that comes twice is handled at its first place, and answered from that at the others.
  ///
  /// Throws: ConfigurationError — before any message was decided; afterwards it is an outcome.
  template <std::ranges::contiguous_range Messages>
  [[nodiscard]] auto process_batch(const Messages& messages, std::stop_token stop = {}) const {
    using Message = std::ranges::range_value_t<Messages>;
    static_assert(
        Identified<Message>,
        "idem: no event_of for these messages: write `idem::Event event_of(const Message&)` in the message's own namespace, or call process_batch(events, messages)");
    if constexpr (Identified<Message> && Way::template accepts<Message>()) {
      std::vector<Event> events(std::ranges::size(messages));
      std::vector<detail::BatchEntry<Result<Message>>> entries(events.size());
      std::size_t i = 0;
      for (const Message& message : messages) {
        try {
          events[i] = event_of(message);
        } catch (const std::exception& e) {
          entries[i].outcome = Way::template rejected<Message>(code::event_of_failed, e.what());
        } catch (...) {
          entries[i].outcome = Way::template rejected<Message>(
              code::event_of_failed, "event_of threw something that is no std::exception");
        }
        ++i;
      }
      return this->template run_batch<Message>(
          events, std::span<const Message>{std::ranges::data(messages), events.size()}, std::move(entries),
          stop);
    } else {
      return BatchReport<std::monostate>{};
    }
  }

  /// As above, for messages that are not yours: `events[i]` says what `messages[i]` is.
  ///
  /// Throws: std::invalid_argument — not as many events as messages.
  template <std::ranges::contiguous_range Events, std::ranges::contiguous_range Messages>
    requires std::same_as<std::ranges::range_value_t<Events>, Event>
  [[nodiscard]] auto process_batch(const Events& events, const Messages& messages,
                                   std::stop_token stop = {}) const {
    using Message = std::ranges::range_value_t<Messages>;
    if constexpr (Way::template accepts<Message>()) {
      const std::span<const Message> all{std::ranges::data(messages), std::ranges::size(messages)};
      if (std::ranges::size(events) != all.size())
        throw std::invalid_argument{
            fmt::format("process_batch: {} events for {} messages", std::ranges::size(events), all.size())};
      return this->template run_batch<Message>(
          std::span<const Event>{std::ranges::data(events), all.size()}, all,
          std::vector<detail::BatchEntry<Result<Message>>>(all.size()), stop);
    } else {
      return BatchReport<std::monostate>{};
    }
  }

 private:
  template <class Message>
  using Result = typename Way::template Result<Message>;
};

template <class Store, class Handler, class... Parts>
IdempotentConsumer(std::string, Store&, Handler, Parts&&...)
    -> IdempotentConsumer<Store, Handler, detail::held_part_t<Parts>...>;

}  // namespace idem
