// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <idem/detail/integer.hpp>
#include <idem/detail/text.hpp>
#include <idem/fingerprint.hpp>

namespace idem {

/// What identifies a message and what the transport knows about it; returned by `event_of(message)`.
struct Event {
  std::string tenant{};        ///< whose event it is; empty: there is one tenant
  std::string id{};            ///< the same on every delivery of the event, and of no other; see `event_id`
  Fingerprint fingerprint{};   ///< what the message says; tells a duplicate from another message under its id
  std::string ordering_key{};  ///< messages of a batch that share it keep their order; empty orders nothing
  std::string_view payload{};  ///< only needed to record dead letters; it must outlive the call
  std::int64_t delivery_count = 0;  ///< the transport's receive count: 1 = first delivery, 0 = unknown
  std::optional<std::chrono::system_clock::time_point> occurred_at{};    ///< checked against the dedup window
  std::optional<std::chrono::steady_clock::time_point> visible_until{};  ///< when the transport's hold ends
};

namespace detail {

template <class T>
concept EventIdPart = PlainInteger<T> || std::convertible_to<const T&, std::string_view>;

inline void append_id_part(std::string& id, std::string_view part) {
  for (const char c : part) {
    if (c == ':' || c == '\\') id += '\\';
    id += c;
  }
}

template <PlainInteger T>
void append_id_part(std::string& id, T part) {
  id += std::to_string(part);
}

/// A literal names the kind of an event; it tells no two events apart.
template <class T>
inline constexpr bool is_literal = std::is_array_v<T>;

template <class T>
[[nodiscard]] bool identifies(const T& part) {
  if constexpr (PlainInteger<T>) {
    return true;
  } else {
    return !blank(std::string_view{part});
  }
}

}  // namespace detail

/// Joins what identifies an event into one readable id: `event_id("order-paid", 17)` is `order-paid:17`.
///
/// Different parts never give one id: a `:` or `\` inside a part gets a `\` in front, and an empty part keeps
/// its place (`event_id("a", "")` is `a:`). When no part but literals has anything in it, nothing identifies
/// the event: the id is then blank and no `Key` accepts it, where `order-paid:` would make one event of all
/// such messages. Ids are stored; this format does not change.
template <detail::EventIdPart... Parts>
  requires(sizeof...(Parts) > 0)
[[nodiscard]] std::string event_id(const Parts&... parts) {
  constexpr bool literals_only = (detail::is_literal<Parts> && ...);
  const bool named = ((detail::identifies(parts) && (literals_only || !detail::is_literal<Parts>)) || ...);
  if (!named) return {};
  std::string id;
  ((detail::append_id_part(id, parts), id += ':'), ...);
  id.pop_back();
  return id;
}

}  // namespace idem
