// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <idem/detail/text.hpp>

namespace idem {

/// A tenant, consumer name or event id that cannot be part of a key; the text names the part, the rule and
/// the value (escaped, shortened).
class InvalidKey : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

struct KeyPart {
  std::string_view name;
  std::size_t max_bytes;
  bool required;
};
inline constexpr KeyPart tenant_part{"tenant", 128, false};
inline constexpr KeyPart consumer_part{"consumer name", 128, true};
inline constexpr KeyPart event_id_part{"event id", 512, true};

/// What is wrong with the value, as the end of a sentence; empty when nothing is.
[[nodiscard]] constexpr std::string_view fault_of(const KeyPart& part, std::string_view value) noexcept {
  if (part.required && value.empty()) return "is empty: it has to tell one from another";
  if (part.required && blank(value)) return "is white space only: it has to tell one from another";
  if (value.size() > part.max_bytes) return "is too long: hash it, or choose a shorter one";
  if (value.find('\0') != std::string_view::npos)
    return "contains NUL, which databases cut or refuse: encode it";
  if (!valid_utf8(value)) return "is not UTF-8: encode it, as hex for example";
  return {};
}

inline void check_key_part(const KeyPart& part, std::string_view value) {
  const std::string_view fault = fault_of(part, value);
  if (fault.empty()) return;
  throw InvalidKey{"idem: the " + std::string{part.name} + " \"" + escaped(value, 64) + "\" (" +
                   std::to_string(value.size()) + " bytes, " + std::to_string(part.max_bytes) + " allowed) " +
                   std::string{fault}};
}

}  // namespace detail

/// Whatever reads as text: `std::string` (moved when it can be), `std::string_view`, `const char*`.
template <class T>
concept TextLike = std::convertible_to<T, std::string_view> && std::constructible_from<std::string, T>;

/// Names one event for one consumer of one tenant: the identity under which an effect happens at most once.
///
/// The parts are bytes: nothing is trimmed, folded, normalised or cut, so two ids that differ in one byte are
/// two events. Limits, in bytes: tenant 128 (may be empty: one tenant), consumer 128, event id 512. All three
/// are UTF-8 without NUL; consumer and event id are neither empty nor ASCII white space only.
class Key {
 public:
  /// Throws: InvalidKey — a part breaks one of the rules above.
  template <TextLike Tenant = std::string, TextLike Consumer = std::string, TextLike EventId = std::string>
  Key(Tenant&& tenant, Consumer&& consumer, EventId&& event_id)
      : tenant_(std::forward<Tenant>(tenant)),
        consumer_(std::forward<Consumer>(consumer)),
        event_id_(std::forward<EventId>(event_id)) {
    detail::check_key_part(detail::tenant_part, tenant_);
    detail::check_key_part(detail::consumer_part, consumer_);
    detail::check_key_part(detail::event_id_part, event_id_);
  }

  /// Throws: InvalidKey — no key could carry this consumer name.
  static void check_consumer(std::string_view consumer) {
    detail::check_key_part(detail::consumer_part, consumer);
  }

  /// Tells whether the three parts make a key, without an allocation or an exception.
  [[nodiscard]] static constexpr bool valid(std::string_view tenant, std::string_view consumer,
                                            std::string_view event_id) noexcept {
    return detail::fault_of(detail::tenant_part, tenant).empty() &&
           detail::fault_of(detail::consumer_part, consumer).empty() &&
           detail::fault_of(detail::event_id_part, event_id).empty();
  }

  [[nodiscard]] const std::string& tenant() const noexcept { return tenant_; }
  [[nodiscard]] const std::string& consumer() const noexcept { return consumer_; }
  [[nodiscard]] const std::string& event_id() const noexcept { return event_id_; }

  /// Spells the key as `tenant/consumer/event id` for one line of a log: control characters are escaped, and
  /// so is a `/` inside tenant or consumer, so that two keys never read the same.
  [[nodiscard]] std::string to_string() const {
    constexpr std::size_t whole = std::string_view::npos;
    return detail::escaped(tenant_, whole, '/') + '/' + detail::escaped(consumer_, whole, '/') + '/' +
           detail::escaped(event_id_);
  }

  /// Orders keys by their bytes: tenant, then consumer, then event id.
  [[nodiscard]] friend std::strong_ordering operator<=>(const Key&, const Key&) = default;
  [[nodiscard]] friend bool operator==(const Key&, const Key&) = default;

 private:
  std::string tenant_;
  std::string consumer_;
  std::string event_id_;
};

}  // namespace idem

template <>
struct std::hash<idem::Key> {
  [[nodiscard]] std::size_t operator()(const idem::Key& key) const noexcept {
    // Each part is hashed by itself and mixed in turn, so that characters cannot move from one part to the
    // next.
    std::size_t seed = 0;
    for (const std::string* part : {&key.tenant(), &key.consumer(), &key.event_id()})
      seed = (seed ^ std::hash<std::string>{}(*part)) * 0x9E3779B97F4A7C15U;
    return seed;
  }
};
