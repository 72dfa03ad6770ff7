// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <idem/detail/json_value.hpp>
#include <idem/fingerprint.hpp>

namespace idem {

/// Fingerprints only what these JSON pointers (RFC 6901) point at: `JsonOnly{{"/order/id", "/amount"}}`.
///
/// The order of the pointers does not count. One that points at nothing counts as absent, which is not
/// `null`.
struct JsonOnly {
  std::vector<std::string> pointers;
};

/// Fingerprints all but what these JSON pointers (RFC 6901) point at: `JsonExcept{{"/received_at"}}`.
///
/// An array element that is left out closes up. A pointer that points at nothing has no effect.
struct JsonExcept {
  std::vector<std::string> pointers;
};

/// Hashes the value that a JSON text stands for, however it is spelled.
///
/// * The order of members does not count, the order of elements does; white space never.
/// * Text is compared after its escapes are resolved (`"\u0041"` is `"A"`), without Unicode normalisation.
/// * Numbers are compared by their exact decimal value, at any size: 1, 1.0, 10e-1 are one, 0 and -0 too;
///   9007199254740993 and 9007199254740992 are two, and so are 0.1 and 0.10000000000000001.
///
/// Fingerprints are stored; the hash does not change. When the pointers change, raise the revision.
///
/// Throws: std::invalid_argument — not JSON (RFC 8259), a member named twice in one object, an escaped
/// surrogate without its other half, nesting deeper than 512, an exponent of more than 9 digits; a malformed
/// pointer, or pointers that leave nothing to hash: `JsonOnly` of which none points at anything, `JsonExcept`
/// of the whole text. The message never quotes the text.
[[nodiscard]] inline Fingerprint fingerprint_json(Revision revision, std::string_view text) {
  return {FingerprintScheme::json, revision, detail::JsonHash{}.add(detail::parse_json(text)).finish()};
}
[[nodiscard]] inline Fingerprint fingerprint_json(Revision revision, std::string_view text,
                                                  const JsonOnly& only) {
  return {FingerprintScheme::json, revision, detail::hash_selected(detail::parse_json(text), only.pointers)};
}
[[nodiscard]] inline Fingerprint fingerprint_json(Revision revision, std::string_view text,
                                                  const JsonExcept& except) {
  detail::Json value = detail::parse_json(text);
  detail::discard(value, except.pointers);
  return {FingerprintScheme::json, revision, detail::JsonHash{}.add(value).finish()};
}
[[nodiscard]] inline Fingerprint fingerprint_json(std::string_view text) {
  return fingerprint_json(Revision{1}, text);
}
[[nodiscard]] inline Fingerprint fingerprint_json(std::string_view text, const JsonOnly& only) {
  return fingerprint_json(Revision{1}, text, only);
}
[[nodiscard]] inline Fingerprint fingerprint_json(std::string_view text, const JsonExcept& except) {
  return fingerprint_json(Revision{1}, text, except);
}

}  // namespace idem
