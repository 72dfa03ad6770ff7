// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/core.h>

#include <idem/error.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/transaction.hpp>

namespace idem::postgres {

namespace detail {

template <class T>
inline constexpr bool is_optional_v = false;
template <class T>
inline constexpr bool is_optional_v<std::optional<T>> = true;

/// `number`: which parameter this is, for the error text; its value is nobody's to read there.
template <class T>
[[nodiscard]] TextParameter text_parameter(const T& value, std::size_t number) {
  if constexpr (is_optional_v<T>) {
    return value ? text_parameter(*value, number) : TextParameter{};
  } else if constexpr (std::same_as<T, std::nullopt_t> || std::same_as<T, std::nullptr_t>) {
    return std::nullopt;
  } else if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::same_as<T, char>) {
    return text_parameter(std::string_view{&value, 1}, number);
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    const std::string_view text = value;
    if (text.find('\0') != std::string_view::npos)
      throw PermanentError{fmt::format(
          "parameter ${} holds a NUL character, which PostgreSQL text cannot store (libpq would cut the text there); pass bytes, or encode it",
          number)};
    return std::string{text};
  } else if constexpr (std::convertible_to<const T&, std::span<const std::byte>>) {
    std::string hex = "\\x";
    append_hex(hex, value);
    return hex;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else {
    static_assert(
        !sizeof(T),
        "idem::postgres::exec takes text, numbers, bool, bytes (std::span<const std::byte>) and std::optional of these: convert this argument to one of them");
  }
}

template <class... Args>
[[nodiscard]] std::vector<TextParameter> text_parameters(const Args&... args) {
  std::vector<TextParameter> parameters;
  parameters.reserve(sizeof...(args));
  (parameters.push_back(text_parameter(args, parameters.size() + 1)), ...);
  return parameters;
}

}  // namespace detail

/// Runs a statement with parameters `$1`, `$2`, …; the same on every supported libpqxx.
///
/// Parameters: text, numbers, bool, bytes (to a bytea), and `std::optional` of these (nullopt is NULL). The
/// server works out their types from the statement; add a cast (`$1::date`) where it cannot.
///
/// Throws: PermanentError — a text parameter holds NUL; the driver's errors, which a handler lets out.
template <class... Args>
pqxx::result exec(pqxx::transaction_base& tx, std::string_view sql, const Args&... args) {
  return detail::exec_with(tx, std::string{sql}, detail::text_parameters(args...));
}

/// As above, in a handler: a text that the connection has met before is prepared (the first 64 of up to 8 KiB; keep
/// texts constant), and an error that the handler swallows can be named later.
template <class... Args>
pqxx::result exec(Transaction& tx, std::string_view sql, const Args&... args) {
  return tx.run(std::string{sql}, detail::text_parameters(args...));
}

namespace detail {

[[nodiscard]] inline std::string rows_differ(std::size_t affected, std::size_t expected) {
  return fmt::format("{} row(s) affected where {} were expected", affected, expected);
}

}  // namespace detail

/// Demands that the statement affected exactly so many rows.
///
/// Throws: PreconditionFailed — it did not: the business row was not in the expected state.
inline void require_rows(std::size_t expected, const pqxx::result& result) {
  const auto affected = static_cast<std::size_t>(result.affected_rows());
  if (affected == expected) return;
  throw PreconditionFailed{detail::rows_differ(affected, expected)};
}

}  // namespace idem::postgres
