// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include <idem/event.hpp>
#include <idem/lease.hpp>

namespace idem {

/// A message that says what it is: `idem::Event event_of(const Message&)` in the message's own namespace.
template <class Message>
concept Identified = requires(const Message& message) {
  { event_of(message) } -> std::convertible_to<Event>;
};

/// A handler whose effect is in the store's own database.
template <class Handler, class Transaction, class Message>
concept TransactionalHandler = std::is_invocable_v<const Handler&, Transaction&, const Message&>;

/// A handler that takes all fresh messages of a batch at once; their effects are in the store's own database.
template <class Handler, class Transaction, class Message>
concept BulkHandler = std::is_invocable_v<const Handler&, Transaction&, std::span<const Message* const>>;

/// A handler that says its effect and does not do it: a pure function from a message to what the store runs.
template <class Handler, class Statements, class Message>
concept StatementHandler = std::is_invocable_r_v<Statements, const Handler&, const Message&>;

/// A handler whose effect is outside of the store.
template <class Handler, class Message>
concept LeaseHandler = std::is_invocable_v<const Handler&, Lease&, const Message&>;

namespace detail {

/// What a store without transactions has in the place of one: nothing that a handler could take.
struct NoTransaction {};

/// As above, for a store that takes no effect that is only said.
struct NoStatements {};

/// The form a handler has, decided in this order: a generic one is transactional, and never asked about a
/// lease.
enum class HandlerForm { transactional, bulk, lease, statements, changes_itself, none };

template <class Handler, class Transaction, class Message, class Statements = NoStatements>
[[nodiscard]] consteval HandlerForm form_of() {
  if constexpr (TransactionalHandler<Handler, Transaction, Message>)
    return HandlerForm::transactional;
  else if constexpr (std::is_invocable_v<Handler&, Transaction&, const Message&>)
    return HandlerForm::changes_itself;
  else if constexpr (BulkHandler<Handler, Transaction, Message>)
    return HandlerForm::bulk;
  else if constexpr (LeaseHandler<Handler, Message>)
    return HandlerForm::lease;
  else if constexpr (std::is_invocable_v<Handler&, Lease&, const Message&>)
    return HandlerForm::changes_itself;
  else if constexpr (StatementHandler<Handler, Statements, Message>)
    return HandlerForm::statements;
  else
    return HandlerForm::none;
}

/// What a handler of a form returns.
template <HandlerForm Form, class Handler, class Transaction, class Message>
struct Returned {
  using type = void;
};
template <class Handler, class Transaction, class Message>
struct Returned<HandlerForm::transactional, Handler, Transaction, Message>
    : std::invoke_result<const Handler&, Transaction&, const Message&> {};
template <class Handler, class Transaction, class Message>
struct Returned<HandlerForm::bulk, Handler, Transaction, Message>
    : std::invoke_result<const Handler&, Transaction&, std::span<const Message* const>> {};
template <class Handler, class Transaction, class Message>
struct Returned<HandlerForm::lease, Handler, Transaction, Message>
    : std::invoke_result<const Handler&, Lease&, const Message&> {};

/// What a handler returns, as an Outcome holds it.
template <class Returned>
using result_t = std::conditional_t<std::is_void_v<Returned>, std::monostate, std::remove_cvref_t<Returned>>;

}  // namespace detail

}  // namespace idem
