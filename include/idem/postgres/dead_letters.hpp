// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/dead_letter.hpp>
#include <idem/detail/letter_text.hpp>
#include <idem/detail/text.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/fingerprint.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>
#include <idem/postgres/dead_letter.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/letter_rows.hpp>
#include <idem/postgres/detail/letter_statements.hpp>
#include <idem/postgres/detail/redrive.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/postgres/store.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres {

/// Keeps dead letters in the store's database, for somebody to look at, hand to the handler again, or discard.
///
/// A part of a consumer: what it rejects, and what it finds to be a mismatch, is recorded here and then
/// acknowledged. One record for each (tenant, consumer, event, fingerprint), however often it dies: a mismatch
/// stands beside the good event. No delivery ever reads them, so an open one holds up nothing.
///
/// It has one connection of its own, and one more while it redrives. With `tenant_setting` under row security,
/// only recording, and filters that name the tenant, are a tenant's; everything else needs a role that sees every
/// row. A server that logs statements logs what is recorded here, kept payloads included.
///
/// Thread safety: any number of threads and processes.
class DeadLetters {
 public:
  /// The store outlives it.
  explicit DeadLetters(const PostgresStore& store, DeadLetterOptions options = {}, Runtime runtime = {})
      : options_{std::move(options)},
        upkeep_{store},
        statements_{upkeep_},
        runtime_{idem::detail::with_defaults(std::move(runtime))} {}

  /// See DeadLetterSink. The first cause stays, the last is replaced; a record that was closed is open again, and
  /// counts it in `reopened`.
  ///
  /// Throws: TransientError — it is not known to be recorded; ConfigurationError — the schema or a right is
  /// missing.
  /// Guarantee: when it returns, the record is committed. An answer that was lost does not count it twice.
  void record(const DeadLetter& letter) {
    if (redriving_.is(letter.key, letter.event.fingerprint))
      return;  // it is there, and redrive tells the cause
    const Failure cause = idem::detail::storable(letter.failure);
    detail::NewLetter record{.tenant = letter.key.tenant(),
                             .consumer = letter.key.consumer(),
                             .event_id = letter.key.event_id(),
                             .fingerprint = letter.event.fingerprint,
                             .cause = cause,
                             .attempts = letter.attempts,
                             .delivery_count = letter.event.delivery_count,
                             .ordering_key = idem::detail::storable(letter.event.ordering_key),
                             .occurred_at = letter.event.occurred_at};
    keep_payload(record, letter.event);
    insert(std::move(record));
  }

  /// Records a message of which no event can be made: nothing but its bytes tells it from others, and only
  /// `discard` closes it. `bytes` are kept as a payload is.
  ///
  /// Throws: InvalidKey — no consumer, or no tenant, has this name; else as `record`.
  void record_undecodable(std::string_view consumer, std::string_view bytes, std::string_view reason,
                          std::string_view tenant = {}) {
    Key::check_consumer(consumer);
    idem::detail::check_key_part(idem::detail::tenant_part, tenant);
    const Fingerprint fingerprint = fingerprint_bytes(bytes);
    const Failure cause = idem::detail::storable(
        {ErrorClass::permanent, std::string{code::event_of_failed}, std::string{reason}});
    detail::NewLetter record{
        .tenant = tenant, .consumer = consumer, .event_id = {}, .fingerprint = fingerprint, .cause = cause};
    keep_payload(record, Event{.tenant = std::string{tenant}, .fingerprint = fingerprint, .payload = bytes});
    insert(std::move(record));
  }

  /// The letters, oldest first, at the most `limit`; without their payloads.
  ///
  /// Throws, as all that follow: std::invalid_argument — an argument is refused, and nothing was done;
  /// TransientError — the server cannot be reached; ConfigurationError — the schema or a right is missing.
  [[nodiscard]] std::vector<StoredDeadLetter> list(const DeadLetterFilter& filter = {},
                                                   std::size_t limit = 100) {
    const pqxx::result rows = upkeep_.ask(statements_.list(filter, limit));
    std::vector<StoredDeadLetter> letters;
    for (pqxx::result::size_type i = 0; i < rows.size(); ++i) letters.push_back(detail::letter_of(rows, i));
    return letters;
  }

  /// What they died of, the most frequent first, at the most `limit`: by consumer, kind, code, and first line of
  /// the last cause.
  [[nodiscard]] std::vector<DeadLetterGroup> groups(const DeadLetterFilter& filter = {},
                                                    std::size_t limit = 100) {
    const pqxx::result rows = upkeep_.ask(statements_.groups(filter, limit));
    std::vector<DeadLetterGroup> groups;
    for (pqxx::result::size_type i = 0; i < rows.size(); ++i) groups.push_back(detail::group_of(rows, i));
    return groups;
  }

  /// The payload that a letter has kept, as it was or as the redaction left it; nullopt: there is none.
  [[nodiscard]] std::optional<std::string> payload(std::int64_t id) {
    const pqxx::result rows = upkeep_.ask(statements_.payload(id));
    if (rows.empty()) return std::nullopt;
    return detail::bytes_of_hex(rows[0][0].c_str());
  }

  /// Gives open letters to their consumer again, oldest first and one at a time, as the events they were: under
  /// the same tenant, id, fingerprint, ordering key and time, as a first delivery. `applied` and `duplicate`
  /// close a letter; anything else leaves it open, with its new cause. Starts that the store counted of the event
  /// are forgotten first.
  ///
  /// `decode(const StoredDeadLetter&)` makes the message from `*letter.payload`, the original one: a message, or
  /// an optional of one to pass the letter over. What it throws ends the redrive. Where the message has an
  /// `event_of`, the letter is passed over if that names another tenant or event, or another fingerprint that
  /// can be compared. This object may be the consumer's sink.
  ///
  /// Throws also: std::invalid_argument — the filter names another consumer; ConfigurationError — the consumer's.
  /// Guarantee: no effect is made twice, by two redrives at once or by one that follows a crash: a letter that
  /// had been handled, and not closed, is a duplicate then, and is closed.
  template <class Consumer, class Decode>
  RedriveReport redrive(const Consumer& consumer, DeadLetterFilter filter, Decode decode,
                        const RedriveOptions& options = {}) {
    if (!filter.consumer) filter.consumer = consumer.name();
    if (*filter.consumer != consumer.name())
      throw std::invalid_argument{fmt::format(
          "redrive: the filter names the consumer \"{}\", and this one is \"{}\": leave the name out, or give the consumer it belongs to",
          idem::detail::escaped(*filter.consumer, 64), idem::detail::escaped(consumer.name(), 64))};
    if (options.per_second == 0U)
      throw std::invalid_argument{"RedriveOptions::per_second is 0: leave it out to redrive without a pause"};
    detail::Redrive redrive{upkeep_, statements_, runtime_, redriving_, options};
    for_each_open(filter, [&](std::span<const std::int64_t> ids) {
      return std::all_of(ids.begin(), ids.end(), [&](std::int64_t id) {
        if (!redrive.goes_on()) return false;
        redrive.one(id, filter, consumer, decode);
        return true;
      });
    });
    return redrive.report();
  }

  /// Closes the open letters that agree, for a reason that is kept; returns how many. What dies while it is at
  /// work is left, and so is what somebody records or redrives at that moment.
  ///
  /// Throws also: std::invalid_argument — the reason is blank, or nothing is set in the filter.
  std::uint64_t discard(const DeadLetterFilter& filter, std::string_view reason) {
    const bool any = filter.tenant || filter.consumer || filter.event_id || filter.kind || filter.code ||
                     filter.since || filter.until;
    if (!any)
      throw std::invalid_argument{
          "discard: nothing is set in the filter, and every letter would go; name a consumer at least"};
    check_reason(reason);
    std::uint64_t closed = 0;
    for_each_open(filter, [&](std::span<const std::int64_t> ids) {
      closed += close(filter, ids, reason);
      return true;
    });
    return closed;
  }

  /// As above, for letters by their ids; those that are closed, or unknown, are passed over.
  std::uint64_t discard(std::span<const std::int64_t> ids, std::string_view reason) {
    check_reason(reason);
    std::uint64_t closed = 0;
    for (; !ids.empty(); ids = ids.subspan((std::min)(page, ids.size())))
      closed += close({}, ids.first((std::min)(page, ids.size())), reason);
    return closed;
  }

 private:
  /// Letters that one message is about.
  static constexpr std::size_t page = 100;

  void keep_payload(detail::NewLetter& record, const Event& event) const {
    if (options_.payload == KeepPayload::no || event.payload.empty()) return;
    std::string payload;
    if (options_.redact) {
      try {
        payload = options_.redact(event.payload, event);
      } catch (...) {
        throw TransientError{
            "DeadLetterOptions::redact threw, and nothing was recorded; its text is left out, for it may hold the payload"};
      }
    } else {
      payload = std::string{event.payload};
    }
    if (payload.size() > options_.max_payload) return;
    record.payload = std::move(payload);
    record.kept = options_.redact ? PayloadKept::redacted : PayloadKept::original;
  }

  void insert(detail::NewLetter record) {
    const ClaimToken token = detail::random_token();
    try {
      upkeep_.ask(statements_.record(record, token));
    } catch (const PermanentError&) {
      // The database has another encoding than UTF8, which has the key's characters and lacks one of these.
      const auto plain = [](std::string text) {
        std::replace_if(
            text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
        return text;
      };
      const Failure cause{record.cause.kind, plain(record.cause.code), plain(record.cause.message)};
      record.ordering_key = plain(record.ordering_key);
      upkeep_.ask(statements_.record(
          {record.tenant, record.consumer, record.event_id, record.fingerprint, cause, record.attempts,
           record.delivery_count, record.ordering_key, record.occurred_at, record.payload, record.kept},
          token));
    }
  }

  static void check_reason(std::string_view reason) {
    if (idem::detail::blank(reason))
      throw std::invalid_argument{"discard: the reason is blank; say why, for whoever reads it later"};
  }

  [[nodiscard]] std::uint64_t close(const DeadLetterFilter& filter, std::span<const std::int64_t> ids,
                                    std::string_view reason) {
    const std::string sql =
        statements_.discard(filter, ids, idem::detail::storable(reason), detail::random_token());
    return static_cast<std::uint64_t>(upkeep_.ask(sql).size());
  }

  /// Goes through the letters that are open now and agree, oldest first, a page at a time, as long as `visit`
  /// answers true.
  template <class Visit>
  void for_each_open(const DeadLetterFilter& filter, Visit visit) {
    std::int64_t after = 0;
    const pqxx::result newest = upkeep_.ask(statements_.newest(filter));
    const auto last = newest[0][0].template as<std::int64_t>();
    while (true) {
      const pqxx::result rows = upkeep_.ask(statements_.next(filter, after, last, page));
      std::vector<std::int64_t> ids;
      for (pqxx::result::size_type i = 0; i < rows.size(); ++i)
        ids.push_back(rows[i][0].template as<std::int64_t>());
      if (ids.empty() || !visit(std::span<const std::int64_t>{ids}) || ids.size() < page) return;
      after = ids.back();
    }
  }

  DeadLetterOptions options_;
  detail::Upkeep upkeep_;
  detail::LetterStatements statements_;
  Runtime runtime_;
  detail::Redriving redriving_;
};

static_assert(DeadLetterSink<DeadLetters>);

}  // namespace idem::postgres
