// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <idem/dead_letter.hpp>
#include <idem/keep_visible.hpp>
#include <idem/observer.hpp>
#include <idem/options.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>

namespace idem::detail {

// The kinds of part a consumer takes, each a question about a type, const if the part is.
struct IsRetryPolicy {
  template <class T>
  static constexpr bool of = RetryPolicy<std::remove_cv_t<T>> && !is_redeliver_v<std::remove_cv_t<T>>;
};
struct IsRedeliver {
  template <class T>
  static constexpr bool of = is_redeliver_v<std::remove_cv_t<T>>;
};
struct IsObserver {
  template <class T>
  static constexpr bool of = Observer<T>;
};
struct IsDeadLetterSink {
  template <class T>
  static constexpr bool of = DeadLetterSink<T>;
};
struct IsKeepVisible {
  template <class T>
  static constexpr bool of = std::same_as<std::remove_cv_t<T>, KeepVisible>;
};
struct IsOptions {
  template <class T>
  static constexpr bool of = std::same_as<std::remove_cv_t<T>, ConsumerOptions>;
};
struct IsRuntime {
  template <class T>
  static constexpr bool of = std::same_as<std::remove_cv_t<T>, Runtime>;
};

template <class Kind, class... Parts>
inline constexpr std::size_t parts_of_kind = (std::size_t{0} + ... +
                                              (Kind::template of<std::remove_reference_t<Parts>> ? 1U : 0U));

template <class T>
inline constexpr bool is_part =
    IsRetryPolicy::of<T> || IsRedeliver::of<T> || IsObserver::of<T> || IsDeadLetterSink::of<T> ||
    IsKeepVisible::of<T> || IsOptions::of<T> || IsRuntime::of<T>;

/// How a consumer keeps a part: observers and sinks that the caller owns by reference, all else as a copy.
template <class Given>
using held_part_t = std::conditional_t<std::is_lvalue_reference_v<Given> &&
                                           (IsObserver::of<std::remove_cvref_t<Given>> ||
                                            IsDeadLetterSink::of<std::remove_cvref_t<Given>>),
                                       Given, std::remove_cvref_t<Given>>;

template <class Kind, class... Parts>
constexpr std::size_t index_of() {
  const bool matches[] = {Kind::template of<std::remove_reference_t<Parts>>..., true};
  std::size_t index = 0;
  while (!matches[index]) ++index;
  return index;
}

/// The part of a kind, or `fallback` where there is none.
template <class Kind, class Fallback, class... Parts>
[[nodiscard]] constexpr auto& part_or(Fallback& fallback, std::tuple<Parts...>& parts) noexcept {
  if constexpr (parts_of_kind<Kind, Parts...> == 0)
    return fallback;
  else
    return std::get<index_of<Kind, Parts...>()>(parts);
}

}  // namespace idem::detail
