// SPDX-License-Identifier: MIT
#pragma once

// dead list, groups, show, discard, redrive

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "desk.hpp"

namespace idemctl {

[[nodiscard]] inline idem::postgres::DeadLetterFilter letters(const Options& options) {
  using idem::ErrorClass;
  using idem::postgres::LetterState;
  const auto kind = options.one_of(
      "--kind",
      {ErrorClass::transient, ErrorClass::throttled, ErrorClass::reconnect, ErrorClass::in_doubt,
       ErrorClass::permanent, ErrorClass::configuration, ErrorClass::cancelled},
      [](ErrorClass one) { return idem::to_string(one); });
  const auto state = options.one_of(
      "--state", {LetterState::open, LetterState::closed, LetterState::any}, [](LetterState one) {
        return one == LetterState::open ? "open" : one == LetterState::closed ? "closed" : "any";
      });
  return {.tenant = options.value("--tenant"),
          .consumer = options.value("--consumer"),
          .event_id = options.value("--event"),
          .kind = kind,
          .code = options.value("--code"),
          .state = state.value_or(LetterState::open)};
}

/// The words behind the command.
[[nodiscard]] inline std::vector<std::int64_t> letter_ids(const Options& options) {
  std::vector<std::int64_t> ids;
  for (std::size_t i = 2; i < options.words().size(); ++i) ids.push_back(Options::number(options.words()[i]));
  return ids;
}

/// Without the payload.
[[nodiscard]] inline Json row_of(const idem::postgres::StoredDeadLetter& letter) {
  using idem::postgres::ClosedAs;
  using idem::postgres::PayloadKept;
  return {{"id", letter.id},
          {"state", !letter.closed_as                         ? "open"
                    : *letter.closed_as == ClosedAs::redriven ? "redriven"
                                                              : "discarded"},
          {"tenant", letter.tenant},
          {"consumer", letter.consumer},
          {"event", letter.event_id},
          {"recorded", letter.recorded},
          {"last_at", time_text(letter.last_at)},
          {"kind", std::string{to_string(letter.last.kind)}},
          {"code", letter.last.code},
          {"message", letter.last.message},
          {"payload", letter.payload_kept == PayloadKept::none       ? "none"
                      : letter.payload_kept == PayloadKept::original ? "original"
                                                                     : "redacted"}};
}

inline int dead_list(Desk& desk) {
  std::vector<Json> rows;
  for (const auto& letter :
       idem::postgres::DeadLetters{desk.store}.list(letters(desk.options), desk.options.limit()))
    rows.push_back(row_of(letter));
  print(rows, desk.format);
  return done;
}

inline int dead_groups(Desk& desk) {
  std::vector<Json> rows;
  for (const auto& group :
       idem::postgres::DeadLetters{desk.store}.groups(letters(desk.options), desk.options.limit()))
    rows.push_back({{"count", group.count},
                    {"consumer", group.consumer},
                    {"kind", std::string{to_string(group.kind)}},
                    {"code", group.code},
                    {"message", group.message},
                    {"oldest", time_text(group.oldest)},
                    {"newest", time_text(group.newest)},
                    {"example", group.example}});
  print(rows, desk.format);
  return done;
}

inline int dead_show(Desk& desk) {
  const auto wanted = letter_ids(desk.options);
  if (wanted.size() != 1) throw UsageError{"dead show takes one id, as dead list prints it"};
  const std::string id = std::to_string(wanted[0]);
  // The library lists by event: this finds which.
  const pqxx::result event = desk.upkeep.ask("SELECT tenant, consumer, event_id FROM " +
                                             desk.upkeep.table("dead_letters") + " WHERE id = " + id);
  if (event.empty()) return say(nothing, "there is no dead letter " + id);
  idem::postgres::DeadLetters dead{desk.store};
  const auto found = dead.list({.tenant = event[0][0].c_str(),
                                .consumer = event[0][1].c_str(),
                                .event_id = event[0][2].c_str(),
                                .state = idem::postgres::LetterState::any},
                               most);
  const auto letter =
      std::find_if(found.begin(), found.end(), [&](const auto& one) { return one.id == wanted[0]; });
  if (letter == found.end()) return say(nothing, "there is no dead letter " + id + " any more");
  Json one = row_of(*letter);
  one.update({{"fingerprint", letter->fingerprint.given() ? Json(letter->fingerprint.to_hex()) : Json()},
              {"first_at", time_text(letter->first_at)},
              {"first_kind", std::string{to_string(letter->first.kind)}},
              {"first_code", letter->first.code},
              {"first_message", letter->first.message},
              {"attempts", letter->attempts},
              {"delivery_count", letter->delivery_count},
              {"ordering_key", letter->ordering_key},
              {"occurred_at", time_or_null(letter->occurred_at)},
              {"redrives", letter->redrives},
              {"reopened", letter->reopened},
              {"closed_at", time_or_null(letter->closed_at)},
              {"closed_reason", letter->closed_reason}});
  if (desk.options.has("--payload")) {
    const auto payload = dead.payload(letter->id);
    if (payload && !idem::detail::valid_utf8(*payload)) {
      std::string hex;
      idem::postgres::detail::append_hex(hex, std::as_bytes(std::span{payload->data(), payload->size()}));
      one["payload_hex"] = hex;
    } else {
      one["payload_text"] = payload ? Json(*payload) : Json();
    }
  }
  print_one(one, desk.format);
  return done;
}

inline int dead_discard(Desk& desk) {
  auto filter = letters(desk.options);
  const auto wanted = letter_ids(desk.options);
  const std::string reason = desk.options.reason();
  const bool filtered = filter.tenant || filter.consumer || filter.event_id || filter.kind || filter.code;
  desk.options.demand_one_way("dead discard", {!wanted.empty(), filtered, desk.options.has("--all")},
                              "ids, a filter (--consumer, --code, ...) or --all");
  idem::postgres::DeadLetters dead{desk.store};
  std::uint64_t closed = 0;
  if (!wanted.empty()) {
    std::string list;
    for (const auto id : wanted) list += (list.empty() ? "" : ", ") + std::to_string(id);
    closed = desk.dry_run() ? desk.count("SELECT count(*) FROM " + desk.upkeep.table("dead_letters") +
                                         " WHERE closed_at IS NULL AND id IN (" + list + ")")
                            : dead.discard(wanted, reason);
    if (closed == 0) return say(nothing, "none of these dead letters is open");
  } else if (desk.dry_run()) {
    for (const auto& group : dead.groups(filter, most)) closed += group.count;
  } else {
    // The library, too, wants a filter. What dies while this runs is left in any case.
    if (!filtered) filter.until = std::chrono::system_clock::now() + std::chrono::hours{24};
    closed = dead.discard(filter, reason);
  }
  desk.print_changed("discarded", closed);
  return done;
}

inline int dead_redrive(Desk& desk) {
  if (!desk.dry_run())
    return say(
        refused,
        "a redrive runs the consumer's handler, which is in your service: call DeadLetters::redrive there; "
        "with --dry-run this prints what it would take");
  std::vector<Json> rows;
  for (const auto& letter : idem::postgres::DeadLetters{desk.store}.list(letters(desk.options), most)) {
    if (rows.size() == desk.options.limit()) break;
    if (letter.payload_kept == idem::postgres::PayloadKept::original && !letter.event_id.empty())
      rows.push_back(row_of(letter));
  }
  print(rows, desk.format);
  return done;
}

}  // namespace idemctl
