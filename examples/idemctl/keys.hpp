// SPDX-License-Identifier: MIT
#pragma once

// explain, forget, purge

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "dead.hpp"
#include "desk.hpp"

namespace idemctl {

/// What the tables know of an event.
struct Known {
  bool anything = false;
  Json facts = Json::object();
  std::vector<std::string> sentences = {};
};

/// One row: the key, its count of starts, and what its handler published.
[[nodiscard]] inline std::string knowledge_sql(const idem::postgres::detail::Upkeep& upkeep,
                                               const idem::Key& key) {
  const auto where = [&](const std::string& t) {
    using idem::postgres::detail::text_value;
    return t + ".tenant = " + text_value(key.tenant()) + " AND " + t +
           ".consumer = " + text_value(key.consumer()) + " AND " + t +
           ".event_id = " + text_value(key.event_id());
  };
  const auto time = [](const std::string& column) {
    return "to_char(" + column + " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), ";
  };
  return "SELECT CASE WHEN k.tenant IS NULL THEN 'not handled' "
         "WHEN k.committed_at IS NULL AND k.leased_until <= clock_timestamp() THEN 'lease ended' "
         "WHEN k.committed_at IS NULL THEN 'leased' "
         "WHEN k.window_ends <= clock_timestamp() THEN 'window ended' ELSE 'handled' END, " +
         time("k.committed_at") + time("k.window_ends") + time("k.leased_until") +
         "k.fence, k.generation, a.starts, a.failures, cardinality(a.open_starts), "
         "o.published, o.sent, o.dead FROM (SELECT count(*) AS published, count(o.sent_at) AS sent, "
         "count(o.dead_at) AS dead FROM " +
         upkeep.table("outbox") + " o WHERE " + where("o") + ") o LEFT JOIN " + upkeep.table("keys") +
         " k ON " + where("k") + " LEFT JOIN " + upkeep.table("attempts") + " a ON " + where("a");
}

/// What the key's state means for the next delivery.
[[nodiscard]] inline std::string sentence_of(const Json& facts) {
  const auto at = [&](const char* name) { return facts[name].get<std::string>(); };
  const std::string state = at("state");
  if (state == "handled")
    return "handled: its effect was committed at " + at("committed_at") +
           "; another delivery is a duplicate, " +
           (facts["window_ends"].is_null() ? "for ever" : "until " + at("window_ends"));
  if (state == "window ended")
    return "free again: its effect was committed at " + at("committed_at") + ", and its window ended at " +
           at("window_ends") + "; the next delivery runs the handler";
  if (state == "lease ended")
    return "free again: its lease ended at " + at("leased_until") +
           " without an effect; the next delivery runs the handler";
  if (state == "leased")
    return "leased " + (facts["leased_until"].is_null() ? "without an end" : "until " + at("leased_until")) +
           ": somebody is at work on its effect, or died at it";
  return "not handled: there is no key; the next delivery runs the handler";
}

[[nodiscard]] inline Known known_of(Desk& desk, const idem::Key& key) {
  const pqxx::result rows = desk.upkeep.ask(knowledge_sql(desk.upkeep, key));
  const auto text = [&](int column) {
    return rows[0][column].is_null() ? Json() : Json(std::string{rows[0][column].c_str()});
  };
  const auto number = [&](int column) {
    return rows[0][column].is_null() ? Json() : Json(rows[0][column].as<std::int64_t>());
  };
  const auto found = idem::postgres::DeadLetters{desk.store}.list({.tenant = key.tenant(),
                                                                   .consumer = key.consumer(),
                                                                   .event_id = key.event_id(),
                                                                   .state = idem::postgres::LetterState::any},
                                                                  most);
  std::vector<Json> letters;
  std::uint64_t open = 0;
  for (const auto& letter : found) {
    letters.push_back(row_of(letter));
    open += letter.closed_at ? 0U : 1U;
  }
  Known known{.facts = {{"tenant", key.tenant()},
                        {"consumer", key.consumer()},
                        {"event", key.event_id()},
                        {"state", text(0)},
                        {"committed_at", text(1)},
                        {"window_ends", text(2)},
                        {"leased_until", text(3)},
                        {"fencing_token", number(4)},
                        {"generation", number(5)},
                        {"starts_counted", number(6)},
                        {"starts_failed", number(7)},
                        {"starts_without_an_end", number(8)},
                        {"messages_published", number(9)},
                        {"messages_sent", number(10)},
                        {"messages_dead", number(11)},
                        {"open_dead_letters", open},
                        {"dead_letters", letters}}};
  const Json& facts = known.facts;
  const auto shown = [&](const char* name) { return facts[name].dump(); };
  const bool published = facts["messages_published"] > 0;
  known.anything =
      facts["state"] != "not handled" || !facts["starts_counted"].is_null() || published || !found.empty();
  if (!known.anything) {
    known.facts["state"] = "unknown";
    known.sentences = {"unknown: nothing is stored of it; the next delivery runs the handler"};
    return known;
  }
  known.sentences.push_back(sentence_of(facts));
  if (facts["generation"].is_number() && facts["generation"] > 1)
    known.sentences.push_back("the key was taken " + shown("generation") + " times, ended windows included");
  if (!facts["fencing_token"].is_null())
    known.sentences.push_back("the fencing token of its last lease is " + shown("fencing_token"));
  if (!facts["starts_counted"].is_null())
    known.sentences.push_back("starts counted: " + shown("starts_counted") +
                              ", of which failed: " + shown("starts_failed") +
                              ", without an end (crashed, or at work): " + shown("starts_without_an_end"));
  for (const Json& letter : letters)
    known.sentences.push_back("dead letter " + letter["id"].dump() + " is " +
                              letter["state"].get<std::string>() + "; it died of " +
                              letter["kind"].get<std::string>() + " " + text_of(letter["code"]) + ": " +
                              text_of(letter["message"], 200));
  if (published)
    known.sentences.push_back("messages published: " + shown("messages_published") + ", of which sent: " +
                              shown("messages_sent") + ", dead: " + shown("messages_dead"));
  return known;
}

inline int explain(Desk& desk) {
  const idem::Key key = desk.options.event();
  const Known known = known_of(desk, key);
  if (desk.format == Format::json) {
    print_json(known.facts);
  } else {
    std::cout << key.to_string() << '\n';
    for (const auto& sentence : known.sentences) std::cout << "  " << sentence << '\n';
  }
  return known.anything ? done : nothing;
}

/// What `forget` would answer.
[[nodiscard]] inline idem::postgres::Forgotten would_forget(Desk& desk, const idem::Key& key) {
  using idem::postgres::Forgotten;
  const pqxx::result rows = desk.upkeep.ask(idem::postgres::detail::Purging{desk.upkeep}.look_at(key));
  if (rows.empty()) return Forgotten::not_found;
  const std::string_view state = rows[0][0].c_str();
  return state == "leased" ? Forgotten::leased
         : state == "open" ? Forgotten::open_dead_letter
                           : Forgotten::forgotten;
}

inline int forget(Desk& desk) {
  using idem::postgres::Forgotten;
  const idem::Key key = desk.options.event();
  const std::string reason = desk.options.reason();
  switch (desk.dry_run() ? would_forget(desk, key) : idem::postgres::Retention{desk.store}.forget(key)) {
    case Forgotten::forgotten:
      print_one({{desk.dry_run() ? "would_be_forgotten" : "forgotten", key.to_string()},
                 {"at", time_text(std::chrono::system_clock::now())},
                 {"reason", reason}},
                desk.format);
      return done;
    case Forgotten::not_found: return say(nothing, "there is no key " + key.to_string());
    case Forgotten::leased: return say(refused, key.to_string() + " is leased: somebody is at work on it");
    case Forgotten::open_dead_letter:
      return say(refused, key.to_string() + " has an open dead letter: redrive or discard that first");
  }
  return refused;
}

/// Prints what a purge would find now.
inline int purge_dry_run(Desk& desk, const idem::postgres::PurgeOptions& how) {
  idem::postgres::detail::Purging purging{desk.upkeep};
  const pqxx::result now = desk.upkeep.ask(purging.time());
  purging.begin_at(now[0][0].as<std::int64_t>());
  const auto rows = [&](const idem::postgres::detail::DueRows& due) {
    return desk.count("SELECT count(*) FROM " + due.table + " t WHERE " + due.condition);
  };
  const bool all = how.consumer.empty();
  const auto keys = all ? purging.ended_keys() : purging.old_keys(how.consumer, *how.older_than);
  const auto with_keys =
      desk.count("SELECT count(*) FROM " + keys.table + " t JOIN " + desk.upkeep.table("attempts") +
                 " a ON a.tenant = t.tenant AND a.consumer = t.consumer AND "
                 "a.event_id = t.event_id WHERE " +
                 keys.condition);
  print_one({{"would_be_removed_keys", rows(keys)},
             {"would_be_removed_attempts",
              with_keys + (all ? 0 : rows(purging.old_attempts(how.consumer, *how.older_than)))},
             {"would_be_removed_messages", all ? rows(purging.sent_messages(how.outbox_older_than)) : 0},
             {"would_be_removed_dead_letters",
              all ? rows(purging.closed_letters(how.dead_letters_older_than)) : 0}},
            desk.format);
  return done;
}

inline int purge(Desk& desk) {
  idem::postgres::PurgeOptions how;
  if (const auto consumer = desk.options.value("--consumer")) {
    idem::Key::check_consumer(*consumer);
    how.consumer = *consumer;
  }
  if (const auto age = desk.options.value("--older-than")) how.older_than = Options::duration(*age);
  if (const auto batch = desk.options.value("--batch"))
    how.batch = static_cast<std::size_t>(Options::number(*batch));
  if (how.older_than.has_value() == how.consumer.empty())
    throw UsageError{
        "--consumer and --older-than go together; without both, what has ended by itself is removed"};
  if (desk.dry_run()) return purge_dry_run(desk, how);
  const auto report = idem::postgres::Retention{desk.store}.purge(how);
  const bool busy = report.end == idem::postgres::PurgeEnd::busy;
  print_one({{"removed_keys", report.keys},
             {"removed_attempts", report.attempts},
             {"removed_messages", report.outbox},
             {"removed_dead_letters", report.dead_letters},
             {"batches", report.batches},
             {"longest_batch_seconds", seconds(report.longest_batch)},
             {"busy", busy}},
            desk.format);
  return busy ? say(try_again, "another purge of this schema is at work") : done;
}

}  // namespace idemctl
