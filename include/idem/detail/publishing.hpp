// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <idem/detail/sha256.hpp>
#include <idem/detail/text.hpp>
#include <idem/error.hpp>
#include <idem/key.hpp>
#include <idem/outbox.hpp>

namespace idem::detail {

/// For which event a handler runs, as what it publishes must know.
struct Publishing {
  enum class For {
    nothing,         ///< no handler is at work
    one_event,       ///< see the parts of its key
    many_events,     ///< of one tenant: a bulk handler
    several_tenants  ///< as above, and their tenants differ
  };

  [[nodiscard]] static Publishing for_event(const Key& key) {
    return {For::one_event, key.tenant(), key.consumer(), key.event_id()};
  }

  /// For a handler that takes events at once, be it one: none of them alone is the origin.
  [[nodiscard]] static Publishing for_events(std::span<const Key* const> keys) {
    if (keys.empty()) return {};
    const Key& first = *keys.front();
    const bool one_tenant = std::all_of(keys.begin(), keys.end(),
                                        [&](const Key* key) { return key->tenant() == first.tenant(); });
    return {one_tenant ? For::many_events : For::several_tenants, first.tenant(), first.consumer()};
  }

  For what = For::nothing;
  std::string tenant = {};
  std::string consumer = {};
  std::string event_id = {};
  std::uint64_t position = 0;  ///< how many messages the handler has enqueued in this run
};

/// What is wrong with a message, as the end of a sentence behind the part's name; empty: nothing.
[[nodiscard]] inline std::string_view fault_of_text(std::string_view value, std::size_t most) noexcept {
  if (value.size() > most) return "is too long";
  if (value.find('\0') != std::string_view::npos) return "contains NUL: encode it";
  if (!valid_utf8(value)) return "is not UTF-8: encode it, as hex for example";
  return {};
}

/// Demands that a message can be stored and sent. Throws: PermanentError.
inline void check_outbox_message(const OutboxMessage& message) {
  constexpr std::size_t short_text = 255;
  constexpr std::size_t longest_key = 512;
  constexpr std::size_t all_headers = 65'536;
  constexpr std::size_t largest_payload = std::size_t{16} << 20U;
  enum class Blank { allowed, refused };
  const auto refuse = [](std::string_view part, std::string_view value, std::size_t most,
                         std::string_view fault) {
    throw PermanentError{"enqueue: the " + std::string{part} + " \"" + escaped(value, 64) + "\" (" +
                         std::to_string(value.size()) + " bytes, " + std::to_string(most) + " allowed) " +
                         std::string{fault}};
  };
  const auto check = [&](std::string_view part, std::string_view value, std::size_t most, Blank blanks) {
    if (blanks == Blank::refused && blank(value))
      refuse(part, value, most,
             value.empty() ? "is empty: give it one" : "is white space only: give it another");
    if (const auto fault = fault_of_text(value, most); !fault.empty()) refuse(part, value, most, fault);
  };
  check("topic", message.topic, short_text, Blank::refused);
  check("ordering key", message.key, longest_key, Blank::allowed);
  if (!message.id.empty()) check("message id", message.id, short_text, Blank::refused);
  std::size_t size = 0;
  for (const auto& [name, value] : message.headers) {
    check("name of a header", name, short_text, Blank::refused);
    if (const auto fault = fault_of_text(value, all_headers);
        !fault.empty())  // a header's value may be a secret
      throw PermanentError{"enqueue: the value of header \"" + escaped(name, 64) + "\" (" +
                           std::to_string(value.size()) + " bytes) " + std::string{fault}};
    size += name.size() + value.size();
  }
  if (size > all_headers)
    throw PermanentError{"enqueue: the headers hold " + std::to_string(size) + " bytes, and " +
                         std::to_string(all_headers) + " are allowed: put what is large into the payload"};
  if (message.payload.size() > largest_payload)
    throw PermanentError{"enqueue: the payload holds " + std::to_string(message.payload.size()) +
                         " bytes, and " + std::to_string(largest_payload) +
                         " are allowed: store it elsewhere, and publish where it is"};
}

/// Demands that there is an event, or a tenant at least, for which the message is published. Throws:
/// PermanentError.
inline void check_publishing(const Publishing& publishing, const OutboxMessage& message) {
  using For = Publishing::For;
  if (publishing.what == For::nothing)
    throw PermanentError{
        "enqueue was called outside an open claim: call it in a handler with the handler's own Transaction, or after postgres::claim answered fresh"};
  if (publishing.what == For::several_tenants)
    throw PermanentError{
        "enqueue: this batch holds events of several tenants, so the message's tenant is not known; give each tenant a batch of its own"};
  if (publishing.what == For::many_events && message.id.empty())
    throw PermanentError{
        "enqueue: a bulk handler works for many events, so no id can be derived: give OutboxMessage::id"};
}

[[nodiscard]] inline std::string explain_taken_id(std::string_view id) {
  return "enqueue: the message id \"" + escaped(id, 64) +
         "\" is taken: ids are unique per tenant; give another, or none to have one derived";
}

/// The id of a message that was given none: the same whenever the same run of the same event is made again.
///
/// `generation`: how often the event's key was taken. `purges`: how often keys were removed. Stored, and
/// computed by PostgreSQL as well: it never changes.
[[nodiscard]] inline std::string derived_id(const Publishing& publishing, std::uint64_t generation,
                                            std::uint64_t purges) {
  TaggedHash hash;
  for (const std::string* part : {&publishing.tenant, &publishing.consumer, &publishing.event_id})
    hash.sized('s', part->data(), part->size());
  for (const std::uint64_t number : {generation, purges, publishing.position}) hash.number(number);
  constexpr std::string_view digits = "0123456789abcdef";
  const Sha256Digest digest = hash.finish();
  std::string id;
  for (std::size_t i = 0; i < 16; ++i) {
    id += digits[std::to_integer<std::size_t>(digest[i] >> 4)];
    id += digits[std::to_integer<std::size_t>(digest[i] & std::byte{15})];
  }
  return id;
}

}  // namespace idem::detail
