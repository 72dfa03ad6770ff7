// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/event.hpp>

namespace idem {

/// A message that says what it is: `idem::Event event_of(const Message&)` in the message's own namespace.
template <class Message>
concept Identified = requires(const Message& message) {
  { event_of(message) } -> std::convertible_to<Event>;
};

/// A handler whose effect is in the store's own database.
template <class Handler, class Transaction, class Message>
concept TransactionalHandler = std::is_invocable_v<const Handler&, Transaction&, const Message&>;

namespace detail {

/// As TransactionalHandler, but for constness: a `mutable` lambda.
template <class Handler, class Transaction, class Message>
concept MutableHandler = !TransactionalHandler<Handler, Transaction, Message> &&
                         std::is_invocable_v<Handler&, Transaction&, const Message&>;

/// What a handler returns, as an Outcome holds it.
template <class Returned>
using result_t = std::conditional_t<std::is_void_v<Returned>, std::monostate, std::remove_cvref_t<Returned>>;

}  // namespace detail

}  // namespace idem
