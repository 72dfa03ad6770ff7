// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <idem/detail/field_hash.hpp>
#include <idem/detail/sha256.hpp>

namespace idem {

/// How a fingerprint was made; fingerprints of different schemes say nothing about each other. Stored: the
/// numbers do not change, and another way to hash gets a number of its own.
enum class FingerprintScheme : std::uint8_t { none = 0, fields = 1, bytes = 2, json = 3 };

/// Numbers the choice of what is fingerprinted; raise it when the fields change, so that fingerprints from
/// before and after are not compared. Left out, it is 1. Range: 1 to 255.
class Revision {
 public:
  /// Throws: std::out_of_range — not in 1 to 255.
  constexpr explicit Revision(int number) : number_{static_cast<std::uint8_t>(number)} {
    if (number < 1 || number > 255)
      throw std::out_of_range{"idem::Revision: a revision is a number from 1 to 255"};
  }
  [[nodiscard]] constexpr std::uint8_t number() const noexcept { return number_; }
  [[nodiscard]] friend constexpr bool operator==(Revision, Revision) = default;

 private:
  std::uint8_t number_;
};

/// What a message says, in 32 bytes: tells a redelivery from another message under the same id.
///
/// Default-constructed it is "not given", and compares with nothing.
class Fingerprint {
 public:
  using Digest = std::array<std::byte, 32>;

  Fingerprint() = default;
  Fingerprint(FingerprintScheme scheme, Revision revision, const Digest& sha256) noexcept {
    if (scheme == FingerprintScheme::none) return;
    scheme_ = scheme;
    revision_ = revision.number();
    digest_ = sha256;
  }

  [[nodiscard]] bool given() const noexcept { return scheme_ != FingerprintScheme::none; }
  [[nodiscard]] FingerprintScheme scheme() const noexcept { return scheme_; }
  /// 0 when not given.
  [[nodiscard]] std::uint8_t revision() const noexcept { return revision_; }

  /// The SHA-256 as 64 lower-case digits; empty when not given.
  [[nodiscard]] std::string to_hex() const {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string hex;
    if (!given()) return hex;
    for (const std::byte byte : digest_) {
      hex += digits[std::to_integer<std::size_t>(byte >> 4)];
      hex += digits[std::to_integer<std::size_t>(byte & std::byte{0xF})];
    }
    return hex;
  }

  /// The form to store: scheme, revision, SHA-256 (34 bytes); empty when not given.
  [[nodiscard]] std::vector<std::byte> to_bytes() const {
    std::vector<std::byte> stored;
    if (!given()) return stored;
    stored.reserve(stored_size);
    stored.push_back(static_cast<std::byte>(scheme_));
    stored.push_back(static_cast<std::byte>(revision_));
    stored.insert(stored.end(), digest_.begin(), digest_.end());
    return stored;
  }

  /// Reads what `to_bytes` wrote. Bytes that are damaged, or of a scheme this version does not know, give
  /// "not given": a duplicate is then still a duplicate, it is only not compared.
  [[nodiscard]] static Fingerprint from_bytes(std::span<const std::byte> stored) noexcept {
    Fingerprint read;
    if (stored.size() != stored_size || stored[0] < std::byte{1} || stored[0] > std::byte{3} ||
        stored[1] == std::byte{0})
      return read;
    read.scheme_ = static_cast<FingerprintScheme>(stored[0]);
    read.revision_ = std::to_integer<std::uint8_t>(stored[1]);
    std::copy(stored.begin() + 2, stored.end(), read.digest_.begin());
    return read;
  }

  [[nodiscard]] friend std::strong_ordering operator<=>(const Fingerprint&, const Fingerprint&) = default;
  [[nodiscard]] friend bool operator==(const Fingerprint&, const Fingerprint&) = default;

 private:
  static constexpr std::size_t stored_size = 2 + std::tuple_size_v<Digest>;

  FingerprintScheme scheme_ = FingerprintScheme::none;
  std::uint8_t revision_ = 0;
  Digest digest_{};
};

/// Tells whether a difference between the two means another message: both given, same scheme, same revision.
[[nodiscard]] inline bool comparable(const Fingerprint& a, const Fingerprint& b) noexcept {
  return a.given() && b.given() && a.scheme() == b.scheme() && a.revision() == b.revision();
}

/// Lets a `float` or `double` into a fingerprint by its exact value: `fingerprint_of(exact(price))`.
///
/// A `float` counts as the `double` of the same value. 0.0 and -0.0 differ; all NaN are one. Two computations
/// of one amount may differ in the last bit: prefer integers, or text as it was sent.
template <class F>
  requires(std::same_as<F, float> || std::same_as<F, double>)
[[nodiscard]] constexpr Exact exact(F value) noexcept { return Exact{static_cast<double>(value)}; }

/// Hashes the named fields by value, each with its type and length, so that neighbours never run together.
///
/// * Integers by value, whatever their width and sign; enums as their underlying value; bool is no integer.
/// * Text: `std::string`, `std::string_view`, literals and `const char*` (null: as `nullopt`) are one.
/// * A `char` is a text of one character; `signed char` and `unsigned char` are integers.
/// * `std::byte`, and contiguous ranges of it, are bytes, which differ from text.
/// * `optional`: the value it holds, or `nullopt`, which differs from every value and from no field at all.
/// * `chrono`: durations of integers by length (1000 ms is 1 s), `system_clock` times by instant.
/// * Ranges in their order, pairs and tuples, all of these nested.
/// * `float` and `double` only as `exact(d)`.
///
/// Unordered containers, other clocks and types not named here do not compile. Fingerprints are stored; the
/// hash does not change.
template <class... Fields>
[[nodiscard]] Fingerprint fingerprint_of(Revision revision, const Fields&... fields) {
  static_assert(sizeof...(Fields) > 0,
                "idem::fingerprint_of needs at least one field: name what the message says");
  detail::FieldHash hash;
  (hash.add(fields), ...);
  return {FingerprintScheme::fields, revision, hash.finish()};
}
template <class... Fields>
[[nodiscard]] Fingerprint fingerprint_of(const Fields&... fields) {
  return fingerprint_of(Revision{1}, fields...);
}

/// Hashes the bytes as they were sent: the SHA-256 of the payload. Equal content that is spelled or ordered
/// differently gives another fingerprint; see `fingerprint_json` for JSON.
[[nodiscard]] inline Fingerprint fingerprint_bytes(std::span<const std::byte> bytes) {
  detail::Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return {FingerprintScheme::bytes, Revision{1}, hash.finish()};
}
[[nodiscard]] inline Fingerprint fingerprint_bytes(std::string_view bytes) {
  return fingerprint_bytes(std::as_bytes(std::span{bytes.data(), bytes.size()}));
}

}  // namespace idem
