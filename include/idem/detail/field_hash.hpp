// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <idem/detail/integer.hpp>
#include <idem/detail/sha256.hpp>

namespace idem {

/// A floating-point value that may go into a fingerprint; made by `exact(d)`.
struct Exact {
  double value;
};

}  // namespace idem

namespace idem::detail {

template <class T>
inline constexpr bool always_false = false;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
inline constexpr bool is_tuple = false;
template <class... Ts>
inline constexpr bool is_tuple<std::tuple<Ts...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_duration = false;
template <class Rep, class Period>
inline constexpr bool is_duration<std::chrono::duration<Rep, Period>> = std::integral<Rep> &&
                                                                        sizeof(Rep) <= 8;

template <class T>
inline constexpr bool is_system_time = false;
template <class D>
inline constexpr bool is_system_time<std::chrono::time_point<std::chrono::system_clock, D>> = is_duration<D>;

template <class T>
concept Unordered = requires {
  typename T::hasher;
};

/// A range with an order of its own that is not a range of itself, as a file-system path is.
template <class T>
concept HashableRange = std::ranges::input_range<const T> && !Unordered<T> &&
                        !std::same_as<std::ranges::range_value_t<const T>, T> &&
                        !std::same_as<std::ranges::range_value_t<const T>, char>;

template <class T>
concept ByteRange = std::ranges::contiguous_range<const T> && std::ranges::sized_range<const T> &&
    std::same_as<std::ranges::range_value_t<const T>, std::byte>;

/// The encoding behind `fingerprint_of`: every value is a tag and then either a fixed size, a length, or an
/// end mark, so no sequence of values is the beginning of another. Numbers are big-endian. Stored: it never
/// changes.
class FieldHash {
 public:
  template <class T>
  void add(const T& value) {
    if constexpr (std::same_as<T, bool>) {
      hash_.tag(value ? 't' : 'f');
    } else if constexpr (PlainInteger<T>) {
      integer(value);
    } else if constexpr (std::same_as<T, char>) {
      hash_.sized('s', &value, 1);
    } else if constexpr (std::same_as<T, std::byte>) {
      hash_.sized('b', &value, 1);
    } else if constexpr (std::is_enum_v<T>) {
      enumerator(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::same_as<T, Exact>) {
      hash_.tag('x');
      hash_.number(value.value == value.value ? std::bit_cast<std::uint64_t>(value.value)
                                              : 0x7FF8000000000000U);
    } else if constexpr (std::same_as<T, std::nullopt_t>) {
      hash_.tag('o');
    } else if constexpr (is_optional<T>) {
      optional(value);
    } else if constexpr (std::same_as<T, const char*> || std::same_as<T, char*>) {
      value == nullptr ? hash_.tag('o') : text(value);
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      text(value);
    } else if constexpr (is_duration<T>) {
      hash_.tag('d');
      seconds<typename T::period>(value.count());
    } else if constexpr (is_system_time<T>) {
      hash_.tag('T');
      seconds<typename T::period>(value.time_since_epoch().count());
    } else if constexpr (ByteRange<T>) {
      hash_.sized('b', std::ranges::data(value), std::ranges::size(value));
    } else if constexpr (is_tuple<T>) {
      hash_.tag('(');
      std::apply([this](const auto&... element) { (this->add(element), ...); }, value);
      hash_.tag(')');
    } else if constexpr (HashableRange<T>) {
      hash_.tag('[');
      for (auto&& element : value) add(static_cast<const std::ranges::range_value_t<const T>&>(element));
      hash_.tag(']');
    } else {
      refuse<T>();
    }
  }

  [[nodiscard]] Sha256Digest finish() { return hash_.finish(); }

 private:
  void text(std::string_view value) { hash_.sized('s', value.data(), value.size()); }

  template <class T>
  static constexpr std::uint64_t magnitude(T value) noexcept {
    const auto bits = static_cast<std::uint64_t>(value);
    return value < 0 ? std::uint64_t{0} - bits : bits;
  }

  template <std::integral T>
  void integer(T value) {
    hash_.tag(value < 0 ? '-' : '+');
    hash_.number(magnitude(value));
  }

  template <std::integral T>
  void enumerator(T value) {
    if constexpr (std::is_signed_v<T>) {
      integer(static_cast<std::int64_t>(value));
    } else {
      integer(static_cast<std::uint64_t>(value));
    }
  }

  template <class T>
  void optional(const std::optional<T>& value) {
    if (!value) return hash_.tag('o');
    if constexpr (is_optional<T>) hash_.tag('O');
    add(*value);
  }

  /// The length in seconds as a fraction in lowest terms, numerator in 128 bits: exact for every unit and
  /// every count, with nothing to overflow.
  template <class Period>
  void seconds(std::integral auto count) {
    constexpr auto numerator = static_cast<std::uint64_t>(Period::type::num);
    constexpr auto denominator = static_cast<std::uint64_t>(Period::type::den);
    constexpr std::uint64_t low = 0xFFFFFFFFU;
    const std::uint64_t ticks = magnitude(count);
    const std::uint64_t common = std::gcd(ticks, denominator);
    const std::uint64_t a = ticks / common;
    const std::uint64_t middle = (a >> 32U) * (numerator & low) + (((a & low) * (numerator & low)) >> 32U);
    const std::uint64_t cross = (a & low) * (numerator >> 32U) + (middle & low);
    hash_.tag(count < 0 ? '-' : '+');
    hash_.number((a >> 32U) * (numerator >> 32U) + (middle >> 32U) + (cross >> 32U));
    hash_.number(a * numerator);
    hash_.number(denominator / common);
  }

  template <class T>
  static void refuse() {
    static_assert(
        !std::floating_point<T>,
        "idem::fingerprint_of takes a float or double only as idem::exact(value); prefer an integer, such "
        "as cents, or the text as it was sent");
    static_assert(
        !Unordered<T>,
        "idem::fingerprint_of takes no unordered container, its order is not stable: pass a std::map, a "
        "std::set or a sorted std::vector");
    static_assert(
        always_false<T> || std::floating_point<T> || Unordered<T>,
        "idem::fingerprint_of does not know this type: name its fields one by one, std::tie them, or pass "
        "text, integers or a system_clock time made from it");
  }

  TaggedHash hash_;
};

}  // namespace idem::detail
