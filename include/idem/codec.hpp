// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <idem/detail/integer.hpp>

namespace idem {

/// Turns a handler's return value into the bytes stored with the key, and back for duplicates.
///
/// Built in: `std::string`, integers, `bool`, `std::vector<std::byte>`, and `std::optional` of whatever has a
/// codec. Specialise it for a type of your own: `static std::string encode(const R&)` and `static R
/// decode(std::string_view)`, which throws on text that `encode` did not write. Stored values outlive a
/// deployment, so `decode` reads what older versions wrote. The bytes may hold anything, NUL included.
template <class R>
struct Codec;

/// A type with a `Codec`.
template <class R>
concept Encodable = requires(const R& value, std::string_view stored) {
  { Codec<R>::encode(value) } -> std::convertible_to<std::string>;
  { Codec<R>::decode(stored) } -> std::same_as<R>;
};

template <>
struct Codec<std::string> {
  [[nodiscard]] static std::string encode(const std::string& value) { return value; }
  [[nodiscard]] static std::string decode(std::string_view stored) { return std::string{stored}; }
};

template <>
struct Codec<std::vector<std::byte>> {
  [[nodiscard]] static std::string encode(const std::vector<std::byte>& value) {
    std::string stored(value.size(), '\0');
    std::transform(value.begin(), value.end(), stored.begin(),
                   [](std::byte b) { return static_cast<char>(b); });
    return stored;
  }
  [[nodiscard]] static std::vector<std::byte> decode(std::string_view stored) {
    std::vector<std::byte> value(stored.size());
    std::transform(stored.begin(), stored.end(), value.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    return value;
  }
};

template <>
struct Codec<bool> {
  [[nodiscard]] static std::string encode(bool value) { return value ? "true" : "false"; }
  /// Throws: std::invalid_argument — neither `true` nor `false`.
  [[nodiscard]] static bool decode(std::string_view stored) {
    if (stored != "true" && stored != "false")
      throw std::invalid_argument{
          "idem::Codec: the stored value is not a bool; was the return type changed?"};
    return stored == "true";
  }
};

template <detail::PlainInteger R>
struct Codec<R> {
  [[nodiscard]] static std::string encode(R value) { return std::to_string(value); }
  /// Throws: std::invalid_argument — not a whole decimal number that fits.
  [[nodiscard]] static R decode(std::string_view stored) {
    R value{};
    const char* const end = stored.data() + stored.size();
    const auto [stop, error] = std::from_chars(stored.data(), end, value);
    if (error != std::errc{} || stop != end)
      throw std::invalid_argument{
          "idem::Codec: the stored value is not an integer of this width; was the return type changed?"};
    return value;
  }
};

/// Absent is the empty text, a value is `=` and then its own encoding.
template <Encodable R>
struct Codec<std::optional<R>> {
  [[nodiscard]] static std::string encode(const std::optional<R>& value) {
    return value ? '=' + Codec<R>::encode(*value) : std::string{};
  }
  /// Throws: std::invalid_argument — the mark is missing; what the codec of `R` throws.
  [[nodiscard]] static std::optional<R> decode(std::string_view stored) {
    if (stored.empty()) return std::nullopt;
    if (stored.front() != '=')
      throw std::invalid_argument{
          "idem::Codec: the stored value is not an optional; was the return type changed?"};
    return Codec<R>::decode(stored.substr(1));
  }
};

}  // namespace idem
