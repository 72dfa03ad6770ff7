// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <idem/dead_letter.hpp>
#include <idem/error.hpp>
#include <idem/fingerprint.hpp>
#include <idem/outcome.hpp>
#include <idem/postgres/dead_letter.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>

namespace idem::postgres::detail {

/// A name of a later version counts as permanent.
[[nodiscard]] inline ErrorClass kind_named(std::string_view name) noexcept {
  for (const ErrorClass kind : {ErrorClass::transient, ErrorClass::throttled, ErrorClass::reconnect,
                                ErrorClass::in_doubt, ErrorClass::configuration, ErrorClass::cancelled})
    if (to_string(kind) == name) return kind;
  return ErrorClass::permanent;
}

/// Microseconds since 1970, as far as the clock of this machine reaches.
[[nodiscard]] inline DeadLetterRecord::Time time_of(std::int64_t since_1970) {
  using std::chrono::microseconds;
  using Time = DeadLetterRecord::Time;
  const auto least = std::chrono::ceil<microseconds>((Time::min)().time_since_epoch()).count();
  const auto most = std::chrono::floor<microseconds>((Time::max)().time_since_epoch()).count();
  return Time{std::chrono::duration_cast<Time::duration>(
      microseconds{std::clamp<std::int64_t>(since_1970, least, most)})};
}

/// What `letter_of` reads.
inline constexpr std::string_view letter_columns =
    "id, tenant, consumer, event_id, encode(fingerprint, 'hex'), recorded, "
    "(EXTRACT(EPOCH FROM first_at) * 1000000)::bigint, (EXTRACT(EPOCH FROM last_at) * 1000000)::bigint, "
    "first_kind, first_code, first_message, last_kind, last_code, last_message, attempts, delivery_count, "
    "ordering_key, (EXTRACT(EPOCH FROM occurred_at) * 1000000)::bigint, payload_kept, redrives, reopened, "
    "(EXTRACT(EPOCH FROM closed_at) * 1000000)::bigint, closed_as, closed_reason";

[[nodiscard]] inline StoredDeadLetter letter_of(const pqxx::result& rows, pqxx::result::size_type index) {
  const auto row = rows[index];
  int column = 0;
  const auto field = [&] { return row[column++]; };
  const auto text = [&] { return std::string{field().c_str()}; };
  const auto time = [&]() -> std::optional<DeadLetterRecord::Time> {
    const auto value = field();
    if (value.is_null()) return std::nullopt;
    return time_of(value.template as<std::int64_t>());
  };
  const auto failure = [&] {
    Failure cause;
    cause.kind = kind_named(field().c_str());
    cause.code = text();
    cause.message = text();
    return cause;
  };
  StoredDeadLetter letter;
  letter.id = field().template as<std::int64_t>();
  letter.tenant = text();
  letter.consumer = text();
  letter.event_id = text();
  const std::string fingerprint = bytes_of_hex(text());
  letter.fingerprint =
      Fingerprint::from_bytes(std::as_bytes(std::span{fingerprint.data(), fingerprint.size()}));
  letter.recorded = field().template as<std::uint64_t>();
  letter.first_at = time().value_or(DeadLetterRecord::Time{});
  letter.last_at = time().value_or(DeadLetterRecord::Time{});
  letter.first = failure();
  letter.last = failure();
  letter.attempts = static_cast<std::uint32_t>(field().template as<std::int64_t>());
  letter.delivery_count = field().template as<std::int64_t>();
  letter.ordering_key = text();
  letter.occurred_at = time();
  const std::string kept = text();
  letter.payload_kept = kept == "original"   ? PayloadKept::original
                        : kept == "redacted" ? PayloadKept::redacted
                                             : PayloadKept::none;
  letter.redrives = field().template as<std::uint64_t>();
  letter.reopened = field().template as<std::uint64_t>();
  letter.closed_at = time();
  const std::string closed_as = text();
  if (!closed_as.empty())
    letter.closed_as = closed_as == "redriven" ? ClosedAs::redriven : ClosedAs::discarded;
  letter.closed_reason = text();
  return letter;
}

[[nodiscard]] inline DeadLetterGroup group_of(const pqxx::result& rows, pqxx::result::size_type index) {
  const auto row = rows[index];
  return {.consumer = row[0].c_str(),
          .kind = kind_named(row[1].c_str()),
          .code = row[2].c_str(),
          .message = row[3].c_str(),
          .count = row[4].as<std::uint64_t>(),
          .oldest = time_of(row[5].as<std::int64_t>()),
          .newest = time_of(row[6].as<std::int64_t>()),
          .example = row[7].as<std::int64_t>()};
}

}  // namespace idem::postgres::detail
