// SPDX-License-Identifier: MIT
//
// An operator's program: what is in the tables, what is stuck, and the way out. `idemctl --help` says it all.

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "idemctl/options.hpp"
#include "idemctl/output.hpp"

namespace idemctl {

using namespace idem;

constexpr std::string_view usage = R"(idemctl [OPTION...] COMMAND

  schema [--roles]             print the SQL of the tables, or of the roles, for a DBA
  check                        can the tables be reached, and are they up to date?
  stats [--prometheus]         numbers to watch
  dead list | groups           dead letters, or what they died of
  dead show ID [--payload]     one of them; its payload only if asked for
  dead discard [ID...] --reason TEXT   close those, or those that the filter names
  dead redrive                 what a redrive in the service would take (DeadLetters::redrive does it)
  outbox list | retry          messages that are not sent; make dead ones wait again, and parked ones due now
  explain                      what is known of the event that --tenant, --consumer and --event name
  forget --reason TEXT         forget that event: its next delivery runs the handler again
  purge                        remove ended windows, messages sent and letters closed 7 days ago
  purge --consumer NAME --older-than 90d   remove a consumer's keys of that age, whatever their window

  --dsn TEXT       as libpq reads it; what it leaves out comes from PGHOST, PGUSER, PGDATABASE, ...
  --schema NAME    where the tables are (idem)
  --tenant --consumer --event --code         filter dead letters
  --tenant --topic --key --state             filter messages (state: waiting, parked, sending, dead)
  --all            discard, retry: without a filter, all that are open, or dead
  --limit N        the most rows of a list (100)
  --batch N        rows that one transaction of a purge removes (1000)
  --json           one JSON document in place of a table
  --dry-run        say what would be changed, and change nothing

Ends with 0: done; 1: there is nothing of that name; 2: wrong use; 3: the server cannot be reached, or the schema, a
right or the login is missing; 4: it was lost on the way, or is busy: try again; 5: refused, the text says why.
)";

enum Exit { done = 0, nothing = 1, wrong_use = 2, misconfigured = 3, try_again = 4, refused = 5 };

class Program {
 public:
  explicit Program(const Options& options)
      : options_{options},
        dsn_{options.value("--dsn").value_or("")},
        schema_{options.value("--schema").value_or("idem")},
        format_{options.has("--json") ? Format::json : Format::table},
        store_{dsn_, {.schema = schema_, .max_connections = 1}} {}

  int run() {
    const auto& words = options_.words();
    if (words.empty()) throw UsageError{"no command"};
    const std::string verb = words.size() > 1 && (words[0] == "dead" || words[0] == "outbox")
                                 ? words[0] + ' ' + words[1]
                                 : words[0];
    const std::map<std::string, std::function<int()>> verbs{{"schema", [&] { return schema(); }},
                                                            {"check", [&] { return check(); }},
                                                            {"stats", [&] { return stats(); }},
                                                            {"dead list", [&] { return dead_list(); }},
                                                            {"dead groups", [&] { return dead_groups(); }},
                                                            {"dead show", [&] { return dead_show(); }},
                                                            {"dead discard", [&] { return dead_discard(); }},
                                                            {"dead redrive", [&] { return dead_redrive(); }},
                                                            {"outbox list", [&] { return outbox_list(); }},
                                                            {"outbox retry", [&] { return outbox_retry(); }},
                                                            {"explain", [&] { return explain(); }},
                                                            {"forget", [&] { return forget(); }},
                                                            {"purge", [&] { return purge(); }}};
    const auto found = verbs.find(verb);
    if (found == verbs.end()) throw UsageError{"unknown command " + detail::escaped(verb, 80)};
    if (verb != "schema" && verb != "check") store_.check();
    return found->second();
  }

 private:
  [[nodiscard]] bool dry_run() const { return options_.has("--dry-run"); }

  int schema() const {
    std::cout << (options_.has("--roles") ? postgres::roles_sql(schema_) : postgres::schema_sql(schema_));
    return done;
  }

  int check() {
    store_.check();
    print_one({{"schema", schema_}, {"version", postgres::schema_version}, {"usable", true}}, format_);
    return done;
  }

  int stats() {
    const auto numbers = postgres::stats(store_);
    if (options_.has("--prometheus")) {
      std::cout << postgres::prometheus_text(numbers);
      return done;
    }
    print_one({{"keys", numbers.keys.rows ? Json(*numbers.keys.rows) : Json()},
               {"keys_bytes", numbers.keys.bytes},
               {"keys_ended", numbers.keys.ended},
               {"leases_live", numbers.leases.live},
               {"leases_overdue", numbers.leases.overdue},
               {"outbox_claimable", numbers.outbox.claimable},
               {"outbox_oldest_claimable_seconds", seconds(numbers.outbox.oldest_claimable_age)},
               {"outbox_behind", numbers.outbox.behind},
               {"outbox_parked", numbers.outbox.parked},
               {"outbox_sending", numbers.outbox.sending},
               {"outbox_dead", numbers.outbox.dead},
               {"dead_letters_open", numbers.dead_letters.open},
               {"dead_letters_oldest_seconds", seconds(numbers.dead_letters.oldest_age)},
               {"purge_seconds_ago", numbers.purge.age ? Json(seconds(*numbers.purge.age)) : Json()},
               {"schema_version", numbers.schema_version}},
              format_);
    return done;
  }

  [[nodiscard]] postgres::DeadLetterFilter letters() const {
    return {.tenant = options_.value("--tenant"),
            .consumer = options_.value("--consumer"),
            .event_id = options_.value("--event"),
            .code = options_.value("--code")};
  }

  [[nodiscard]] static Json row_of(const postgres::StoredDeadLetter& letter) {
    return {{"id", letter.id},
            {"tenant", letter.tenant},
            {"consumer", letter.consumer},
            {"event", letter.event_id},
            {"recorded", letter.recorded},
            {"last_at", time_text(letter.last_at)},
            {"code", letter.last.code},
            {"message", letter.last.message},
            {"payload", letter.payload_kept == postgres::PayloadKept::none       ? "none"
                        : letter.payload_kept == postgres::PayloadKept::original ? "original"
                                                                                 : "redacted"}};
  }

  int dead_list() {
    std::vector<Json> rows;
    for (const auto& letter : postgres::DeadLetters{store_}.list(letters(), options_.limit()))
      rows.push_back(row_of(letter));
    print(rows, format_);
    return done;
  }

  int dead_groups() {
    std::vector<Json> rows;
    for (const auto& group : postgres::DeadLetters{store_}.groups(letters(), options_.limit()))
      rows.push_back({{"count", group.count},
                      {"consumer", group.consumer},
                      {"kind", std::string{to_string(group.kind)}},
                      {"code", group.code},
                      {"message", group.message},
                      {"oldest", time_text(group.oldest)},
                      {"newest", time_text(group.newest)},
                      {"example", group.example}});
    print(rows, format_);
    return done;
  }

  [[nodiscard]] std::vector<std::int64_t> ids() const {
    std::vector<std::int64_t> ids;
    for (std::size_t i = 2; i < options_.words().size(); ++i)
      ids.push_back(Options::number(options_.words()[i]));
    return ids;
  }

  int dead_show() {
    const auto wanted = ids();
    if (wanted.size() != 1) throw UsageError{"dead show takes one id, as dead list prints it"};
    postgres::DeadLetters dead{store_};
    for (const auto& letter : dead.list({.state = postgres::LetterState::any}, 1'000'000)) {
      if (letter.id != wanted[0]) continue;
      Json one = row_of(letter);
      one.update({{"fingerprint", letter.fingerprint.given() ? Json(letter.fingerprint.to_hex()) : Json()},
                  {"first_at", time_text(letter.first_at)},
                  {"first_code", letter.first.code},
                  {"first_message", letter.first.message},
                  {"attempts", letter.attempts},
                  {"delivery_count", letter.delivery_count},
                  {"redrives", letter.redrives},
                  {"closed_at", time_or_null(letter.closed_at)},
                  {"closed_reason", letter.closed_reason}});
      if (options_.has("--payload")) {
        const auto payload = dead.payload(letter.id);
        one["payload_text"] = payload ? Json(*payload) : Json();
      }
      print_one(one, format_);
      return done;
    }
    std::cerr << "there is no dead letter " << wanted[0] << '\n';
    return nothing;
  }

  int dead_discard() {
    const auto filter = letters();
    const auto wanted = ids();
    const std::string reason = options_.demand("--reason");
    const bool filtered = filter.tenant || filter.consumer || filter.event_id || filter.code;
    if (wanted.empty() && !filtered && !options_.has("--all"))
      throw UsageError{"dead discard needs ids, a filter (--consumer, --code, ...) or --all"};
    if (!wanted.empty() && filtered) throw UsageError{"dead discard takes ids or a filter, not both"};
    postgres::DeadLetters dead{store_};
    std::uint64_t closed = 0;
    if (dry_run()) {
      for (const auto& letter : dead.list(filter, 1'000'000))
        closed +=
            wanted.empty() || std::find(wanted.begin(), wanted.end(), letter.id) != wanted.end() ? 1U : 0U;
    } else if (!wanted.empty()) {
      closed = dead.discard(wanted, reason);
    } else {
      auto all = filter;
      if (!filtered) all.until = std::chrono::system_clock::now() + std::chrono::hours{24};
      closed = dead.discard(all, reason);
    }
    return changed("discarded", closed);
  }

  int dead_redrive() {
    std::vector<Json> rows;
    for (const auto& letter : postgres::DeadLetters{store_}.list(letters(), options_.limit()))
      if (letter.payload_kept == postgres::PayloadKept::original && !letter.event_id.empty())
        rows.push_back(row_of(letter));
    if (dry_run()) {
      print(rows, format_);
      return done;
    }
    std::cerr
        << "a redrive runs the consumer's handler, which is in your service: call DeadLetters::redrive there; "
           "with --dry-run this prints what it would take\n";
    return refused;
  }

  [[nodiscard]] postgres::OutboxFilter messages() const {
    postgres::OutboxFilter filter{.topic = options_.value("--topic"),
                                  .tenant = options_.value("--tenant"),
                                  .key = options_.value("--key")};
    if (const auto state = options_.value("--state")) {
      using postgres::OutboxState;
      for (const auto one :
           {OutboxState::waiting, OutboxState::parked, OutboxState::sending, OutboxState::dead})
        if (*state == to_string(one)) filter.state = one;
      if (!filter.state) throw UsageError{"--state is waiting, parked, sending or dead"};
    }
    return filter;
  }

  int outbox_list() {
    std::vector<Json> rows;
    for (const auto& entry : postgres::Outbox{store_}.list(messages(), options_.limit()))
      rows.push_back({{"id", entry.id},
                      {"state", std::string{to_string(entry.state)}},
                      {"topic", entry.topic},
                      {"tenant", entry.tenant},
                      {"key", entry.key},
                      {"attempts", entry.attempts},
                      {"due_at", time_text(entry.due_at)},
                      {"last_error", entry.last_error}});
    print(rows, format_);
    return done;
  }

  int outbox_retry() {
    auto filter = messages();
    if (!filter.state && !filter.topic && !filter.tenant && !filter.key) {
      if (!options_.has("--all"))
        throw UsageError{"outbox retry needs a filter (--topic, --state dead, ...) or --all"};
      filter.state = postgres::OutboxState::dead;
    }
    postgres::Outbox outbox{store_};
    if (!dry_run()) return changed("retried", outbox.retry(filter));
    std::uint64_t would = 0;
    for (const auto& entry : outbox.list(filter, 1'000'000))
      would += entry.state == postgres::OutboxState::dead || entry.state == postgres::OutboxState::parked
                   ? 1U
                   : 0U;
    return changed("retried", would);
  }

  int changed(const std::string& what, std::uint64_t count) const {
    print_one({{dry_run() ? "would_be_" + what : what, count}}, format_);
    return done;
  }

  /// nullopt: the tables know nothing of the event.
  [[nodiscard]] std::optional<Json> known_of(const Key& key) const {
    pqxx::connection connection{dsn_};
    pqxx::nontransaction tx{connection};
    const std::string in = postgres::detail::identifier(schema_) + '.';
    const std::string where = " WHERE tenant = $1 AND consumer = $2 AND event_id = $3";
    const auto ask = [&](const std::string& sql) {
      return postgres::exec(tx, sql, key.tenant(), key.consumer(), key.event_id());
    };
    const auto text = [](const auto& field) {
      return field.is_null() ? Json() : Json(std::string{field.c_str()});
    };
    Json known{{"event", key.to_string()}};
    const pqxx::result keys = ask(
        "SELECT committed_at, window_ends, leased_until, fence, generation, "
        "CASE WHEN committed_at IS NULL AND leased_until <= clock_timestamp() THEN 'free again: its lease has ended' "
        "WHEN committed_at IS NULL THEN 'leased: its effect is under way' "
        "WHEN window_ends <= clock_timestamp() THEN 'free again: its window has ended' ELSE 'handled' END FROM " +
        in + "keys" + where);
    const pqxx::result letters =
        ask("SELECT count(*) FROM " + in + "dead_letters" + where + " AND closed_at IS NULL");
    const pqxx::result outbox = ask("SELECT count(*), count(sent_at) FROM " + in + "outbox" + where);
    const pqxx::result attempts =
        ask("SELECT starts, failures, cardinality(open_starts) FROM " + in + "attempts" + where);
    known["state"] = keys.empty() ? Json("not handled") : text(keys[0][5]);
    if (!keys.empty()) {
      const char* const names[] = {"committed_at", "window_ends", "leased_until", "fencing_token",
                                   "generation"};
      for (int i = 0; i < 5; ++i) known[names[i]] = text(keys[0][i]);
    }
    known["open_dead_letters"] = letters[0][0].as<int>();
    known["messages_published"] = outbox[0][0].as<int>();
    known["messages_sent"] = outbox[0][1].as<int>();
    if (!attempts.empty()) {
      known["starts_counted"] = attempts[0][0].as<int>();
      known["starts_failed"] = attempts[0][1].as<int>();
    }
    const bool nothing_known =
        keys.empty() && letters[0][0].as<int>() == 0 && outbox[0][0].as<int>() == 0 && attempts.empty();
    return nothing_known ? std::nullopt : std::optional<Json>{known};
  }

  int explain() const {
    const auto known = known_of(options_.key());
    print_one(
        known ? *known
              : Json{{"event", options_.key().to_string()}, {"state", "unknown: nothing is stored of it"}},
        format_);
    return known ? done : nothing;
  }

  int forget() {
    const Key key = options_.key();
    const std::string reason = options_.demand("--reason");
    if (detail::blank(reason)) throw UsageError{"--reason is blank"};
    if (dry_run()) {
      const auto known = known_of(key);
      if (known) print_one({{"would_be_forgotten", key.to_string()}, {"state", (*known)["state"]}}, format_);
      return known ? done : nothing;
    }
    switch (postgres::Retention{store_}.forget(key)) {
      case postgres::Forgotten::forgotten:
        print_one({{"forgotten", key.to_string()}, {"reason", reason}}, format_);
        return done;
      case postgres::Forgotten::not_found:
        std::cerr << "there is no key " << key.to_string() << '\n';
        return nothing;
      case postgres::Forgotten::leased:
        std::cerr << key.to_string() << " is leased: somebody is at work on it\n";
        return refused;
      case postgres::Forgotten::open_dead_letter:
        std::cerr << key.to_string() << " has an open dead letter: redrive or discard that first\n";
        return refused;
    }
    return refused;
  }

  int purge() {
    postgres::PurgeOptions how{.consumer = options_.value("--consumer").value_or("")};
    if (const auto age = options_.value("--older-than")) how.older_than = Options::duration(*age);
    if (const auto batch = options_.value("--batch"))
      how.batch = static_cast<std::size_t>(Options::number(*batch));
    if (how.older_than.has_value() == how.consumer.empty())
      throw UsageError{
          "--consumer and --older-than go together; without both, what has ended by itself is removed"};
    if (dry_run()) {
      const auto numbers = postgres::stats(store_);
      if (how.consumer.empty()) return changed("removed_keys", numbers.keys.ended);
      pqxx::connection connection{dsn_};
      pqxx::nontransaction tx{connection};
      const pqxx::result old = postgres::exec(
          tx,
          "SELECT count(*) FROM " + postgres::detail::identifier(schema_) +
              ".keys WHERE consumer = $1 AND committed_at <= clock_timestamp() - $2::interval",
          how.consumer,
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(*how.older_than).count()) + " s");
      return changed("removed_keys", old[0][0].as<std::uint64_t>());
    }
    const auto report = postgres::Retention{store_}.purge(how);
    print_one({{"keys", report.keys},
               {"attempts", report.attempts},
               {"messages", report.outbox},
               {"dead_letters", report.dead_letters},
               {"batches", report.batches},
               {"longest_batch_seconds", seconds(report.longest_batch)},
               {"busy", report.end == postgres::PurgeEnd::busy}},
              format_);
    return report.end == postgres::PurgeEnd::busy ? try_again : done;
  }

  const Options& options_;
  std::string dsn_;
  std::string schema_;
  Format format_;
  PostgresStore store_;
};

}  // namespace idemctl

int main(int argc, char** argv) {
  using namespace idemctl;
  try {
    const Options options{argc, argv};
    if (options.has("--help")) {
      std::cout << usage;
      return done;
    }
    return Program{options}.run();
  } catch (const UsageError& e) {
    std::cerr << "idemctl: " << e.what() << "; idemctl --help tells how it is used\n";
    return wrong_use;
  } catch (const idem::InvalidKey& e) {
    std::cerr << "idemctl: " << e.what() << '\n';
    return wrong_use;
  } catch (const std::invalid_argument& e) {
    std::cerr << "idemctl: " << e.what() << '\n';
    return wrong_use;
  } catch (const idem::ConfigurationError& e) {
    std::cerr << "idemctl: " << e.what() << '\n';
    return misconfigured;
  } catch (const std::exception& e) {
    std::cerr << "idemctl: " << e.what() << '\n';
    return try_again;
  }
}
