// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

namespace idem::detail {

/// A number of at most 64 bits. Truth values and characters are none: one reader sees 1 there, another `true`
/// or a letter.
template <class T>
concept PlainInteger = std::integral<T> && sizeof(T) <= 8 && !std::same_as<T, bool> &&
                       !std::same_as<T, char> && !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                       !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

}  // namespace idem::detail
