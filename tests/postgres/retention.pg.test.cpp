// SPDX-License-Identifier: MIT
#include <idem/postgres/retention.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::retaining {

namespace {

using postgres::Forgotten;
using postgres::PurgeEnd;
using postgres::PurgeOptions;
using postgres::PurgeReport;
using postgres::Retention;

constexpr Duration day = 24h;

/// The library's tables, and rows in them as the past would have left them.
class Past : public Playground {
 public:
  explicit Past(std::string dsn = server_dsn()) : Playground{"retention"}, store_{std::move(dsn), options()} {
    store_.create_schema();
  }
  PostgresStore& store() { return store_; }

  /// `more`: further columns and their values, as SQL.
  const Past& key(const std::string& id, const std::string& committed,
                  const std::string& window_ends = "NULL", const std::string& leased_until = "NULL",
                  const std::string& consumer = "c.v1") const {
    execute(
        "INSERT INTO " + keys() +
        " (tenant, consumer, event_id, claim_token, committed_at, window_ends, leased_until) VALUES ('', '" +
        consumer + "', '" + id + "', gen_random_uuid(), " + committed + ", " + window_ends + ", " +
        leased_until + ")");
    return *this;
  }
  const Past& attempts(const std::string& id, const std::string& started,
                       const std::string& consumer = "c.v1") const {
    execute(
        "INSERT INTO " + schema() +
        ".attempts (tenant, consumer, event_id, starts, open_starts, times_done, started_at) VALUES ('', '" +
        consumer + "', '" + id + "', 3, '{}', 0, " + started + ")");
    return *this;
  }
  const Past& letter(const std::string& id, const std::string& closed) const {
    execute("INSERT INTO " + schema() +
            ".dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code, "
            "first_message, last_kind, last_code, last_message, attempts, delivery_count, closed_at) VALUES "
            "('', 'c.v1', '" +
            id + "', '', gen_random_uuid(), '', '', '', '', '', '', 1, 1, " + closed + ")");
    return *this;
  }
  const Past& message(const std::string& id, const std::string& sent,
                      const std::string& dead = "NULL") const {
    execute("INSERT INTO " + schema() +
            ".outbox (id, tenant, consumer, event_id, topic, key, payload, sent_at, dead_at) VALUES ('" + id +
            "', '', 'c.v1', 'e', 't', 'k', '', " + sent + ", " + dead + ")");
    return *this;
  }

  [[nodiscard]] std::string ids(const std::string& table, const std::string& column = "event_id") const {
    return value("SELECT coalesce(string_agg(" + column + ", ' ' ORDER BY " + column + "), '') FROM " +
                 schema() + "." + table);
  }
  [[nodiscard]] std::string info(const std::string& column) const {
    return value("SELECT " + column + " FROM " + schema() + ".schema_info");
  }

 private:
  PostgresStore store_;
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string ago(const std::string& span) { return "clock_timestamp() - interval '" + span + "'"; }
std::string from_now(const std::string& span) { return "clock_timestamp() + interval '" + span + "'"; }

/// Holds what it did until it is destroyed.
class OpenTransaction {
 public:
  explicit OpenTransaction(const std::string& sql) { work_.exec(sql); }
  void commit() { work_.commit(); }
  [[nodiscard]] int pid() { return pid_of(work_); }

 private:
  pqxx::connection connection_{server_dsn()};
  pqxx::work work_{connection_};
};

}  // namespace

TEST_CASE("a purge removes the keys whose window has ended, and nothing else", "[retention]") {
  Past past;
  past.key("ended", ago("2 days"), ago("1 second"))
      .key("ended long ago", ago("900 days"), ago("800 days"))
      .key("ended, and a closed letter", ago("2 days"), ago("1 day"))
      .key("ended, but an open letter", ago("2 days"), ago("1 day"))
      .key("in its window", ago("2 days"), from_now("1 hour"))
      .key("for ever", ago("900 days"))
      .key("live lease", "NULL", "NULL", from_now("1 hour"))
      .key("lease that ended", "NULL", "NULL", ago("900 days"))
      .key("lease without an end", "NULL")
      .key("lease in an odd row", "NULL", ago("1 day"), from_now("1 hour"));
  past.letter("ended, and a closed letter", ago("1 hour")).letter("ended, but an open letter", "NULL");
  Retention retention{past.store()};
  const PurgeReport report = retention.purge();
  CHECK(report.keys == 3);
  CHECK(report.rows() == 3);
  CHECK(report.end == PurgeEnd::finished);
  CHECK(report.longest_batch > Duration{0});
  CHECK(
      past.ids("keys") ==
      "ended, but an open letter for ever in its window lease in an odd row lease that ended lease without an end "
      "live lease");
  CHECK(retention.purge().rows() == 0);
}

TEST_CASE("a purge of a named consumer removes what is older than the age, whatever its window",
          "[retention]") {
  Past past;
  past.key("old", ago("31 days"))
      .key("old, in its window", ago("31 days"), from_now("1 day"))
      .key("old, and an open letter", ago("31 days"))
      .key("young", ago("29 days"))
      .key("young, and its window ended", ago("29 days"), ago("1 day"))
      .key("live lease", "NULL", "NULL", from_now("1 hour"))
      .key("lease that ended lately", "NULL", "NULL", ago("29 days"))
      .key("lease that ended long ago", "NULL", "NULL", ago("31 days"))
      .key("lease without an end", "NULL")
      .key("of another", ago("31 days"), "NULL", "NULL", "other.v1");
  past.letter("old, and an open letter", "NULL");
  past.message("sent long ago", ago("900 days")).letter("closed long ago", ago("900 days"));
  const PurgeReport report =
      Retention{past.store()}.purge({.older_than = 30 * day, .consumer = "c.v1", .batch = 1});
  CHECK(report.keys == 3);
  CHECK(report.rows() == 3);
  CHECK(past.ids("keys") ==
        "lease that ended lately lease without an end live lease of another old, and an open letter young "
        "young, and its window ended");
  CHECK(past.count("outbox") == "1");
  CHECK(past.count("dead_letters") == "2");
}

TEST_CASE("what was begun before the age and finished after it is kept", "[retention]") {
  Past past;
  const IdempotentConsumer slow{"c.v1", past.store(), [](Lease&, const Note& note) {
                                  execute("SELECT 1");
                                  return note.text;
                                }};
  const IdempotentConsumer windowed{"w.v1", past.store(), [](Lease&, const Note&) {},
                                    ConsumerOptions{.window = 7 * day}};
  // Leased 8 days ago, and the lease without an end until its owner is done.
  past.key("e", "NULL", "NULL", ago("8 days")).key("e", "NULL", "NULL", ago("8 days"), "w.v1");
  CHECK(slow(Note{"e"}).status == Status::applied);
  CHECK(windowed(Note{"e"}).status == Status::applied);
  Retention retention{past.store()};
  CHECK(retention.purge().rows() == 0);
  CHECK(retention.purge({.older_than = 7 * day, .consumer = "c.v1"}).rows() == 0);
  CHECK(retention.purge({.older_than = 7 * day, .consumer = "w.v1"}).rows() == 0);
  CHECK(past.count("keys") == "2");
}

TEST_CASE("neither the worker's time zone nor the server's shifts an age", "[retention]") {
  const char* before = std::getenv("TZ");
  const std::string zone = before == nullptr ? "" : before;
  ::setenv("TZ", "Asia/Tokyo", 1);
  ::tzset();
  Past past{"options='-c timezone=Pacific/Auckland -c datestyle=German -c intervalstyle=sql_standard'"};
  past.key("older", ago("10 hours 1 minute"))
      .key("younger", ago("9 hours 59 minutes"))
      .key("ended", ago("1 day"), ago("1 minute"))
      .key("ended too", ago("1 day"), ago("2 minutes"))
      .key("not ended", ago("1 day"), from_now("1 minute"));
  past.message("older", ago("10 hours 1 minute")).message("younger", ago("9 hours 59 minutes"));
  Retention retention{past.store()};
  CHECK(retention.purge({.batch = 1, .outbox_older_than = 10h}).rows() == 3);
  CHECK(past.ids("keys") == "not ended older younger");
  CHECK(past.ids("outbox", "id") == "younger");
  CHECK(retention.purge({.older_than = 10h, .consumer = "c.v1"}).rows() == 2);  // "not ended" is a day old
  CHECK(past.ids("keys") == "younger");
  if (before == nullptr)
    ::unsetenv("TZ");
  else
    ::setenv("TZ", zone.c_str(), 1);
  ::tzset();
}

TEST_CASE("counts of starts go with their key", "[retention]") {
  Past past;
  past.key("ended", ago("2 days"), ago("1 day")).attempts("ended", ago("2 days"));
  past.key("in its window", ago("2 days"), from_now("1 day")).attempts("in its window", ago("2 days"));
  past.attempts("never done", ago("900 days"));
  past.key("ended", ago("2 days"), from_now("1 day"), "NULL", "other.v1");
  past.attempts("ended", ago("2 days"), "other.v1");
  const PurgeReport report = Retention{past.store()}.purge();
  CHECK(report.keys == 1);
  CHECK(report.attempts == 1);
  CHECK(past.ids("attempts", "consumer || '/' || event_id") ==
        "c.v1/in its window c.v1/never done other.v1/ended");
}

TEST_CASE("counts of starts without a key go by a named consumer and an age", "[retention]") {
  Past past;
  past.attempts("old", ago("31 days"))
      .attempts("young", ago("29 days"))
      .attempts("old, and an open letter", ago("31 days"))
      .attempts("old, and a key in its window", ago("31 days"))
      .attempts("of another", ago("31 days"), "other.v1");
  past.letter("old, and an open letter", "NULL").key("old, and a key in its window", ago("1 day"));
  const PurgeReport report = Retention{past.store()}.purge({.older_than = 30 * day, .consumer = "c.v1"});
  CHECK(report.attempts == 1);
  CHECK(report.rows() == 1);
  CHECK(past.ids("attempts") == "of another old, and a key in its window old, and an open letter young");
}

TEST_CASE("sent messages and closed dead letters go after their time; unsent, dead and open ones stay",
          "[retention]") {
  Past past;
  past.message("sent long ago", ago("3 days"))
      .message("sent lately", ago("1 day"))
      .message("waits", "NULL")
      .message("dead", "NULL", ago("900 days"));
  past.letter("closed long ago", ago("5 days")).letter("closed lately", ago("3 days")).letter("open", "NULL");
  Retention retention{past.store()};
  CHECK(retention.purge().rows() == 0);
  const PurgeReport report =
      retention.purge({.outbox_older_than = 2 * day, .dead_letters_older_than = 4 * day});
  CHECK(report.outbox == 1);
  CHECK(report.dead_letters == 1);
  CHECK(past.ids("outbox", "id") == "dead sent lately waits");
  CHECK(past.ids("dead_letters") == "closed lately open");
}

TEST_CASE("a purge that would do more than it was clearly told is refused, and removes nothing",
          "[retention]") {
  Past past;
  past.key("ended", ago("2 days"), ago("1 day")).key("old", ago("900 days"));
  Retention retention{past.store()};
  const auto refused = [&](const PurgeOptions& options) {
    return refusal([&] { return retention.purge(options).rows(); });
  };
  CHECK(holds(refused({.older_than = day}), "without a consumer"));
  CHECK(holds(refused({.consumer = "c.v1"}), "without older_than"));
  CHECK(holds(refused({.older_than = 0s, .consumer = "c.v1"}), "older_than"));
  CHECK(holds(refused({.older_than = -1s, .consumer = "c.v1"}), "older_than"));
  CHECK(holds(refused({.batch = 0}), "batch"));
  CHECK(holds(refused({.outbox_older_than = 0s}), "outbox_older_than"));
  CHECK(holds(refused({.dead_letters_older_than = -1s}), "dead_letters_older_than"));
  CHECK(holds(refused({.pause = -1s}), "pause"));
  CHECK_THROWS_AS(retention.purge({.older_than = day, .consumer = " "}), InvalidKey);
  CHECK(past.count("keys") == "2");
  CHECK(past.info("purges") == "0");
}

TEST_CASE("the purge is announced, and that committed, before the first key goes; once in a purge",
          "[retention]") {
  Past past;
  Retention retention{past.store()};
  past.message("m", ago("30 days"));
  CHECK(retention.purge().outbox == 1);
  CHECK(retention.purge({.older_than = day, .consumer = "c.v1"}).rows() == 0);
  CHECK(past.info("purges") == "0");

  for (int i = 0; i < 5; ++i) past.key("ended " + std::to_string(i), ago("2 days"), ago("1 day"));
  execute("CREATE TABLE " + past.schema() + ".seen (purges bigint, committed boolean);" + "CREATE FUNCTION " +
          past.schema() + ".look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO " + past.schema() +
          ".seen SELECT purges, xmin <> pg_current_xact_id()::xid FROM " + past.schema() +
          ".schema_info; RETURN OLD; END'; CREATE TRIGGER look BEFORE DELETE ON " + past.keys() +
          " FOR EACH ROW EXECUTE FUNCTION " + past.schema() + ".look()");
  CHECK(retention.purge({.batch = 2}).keys == 5);
  CHECK(past.info("purges") == "1");
  CHECK(past.value("SELECT count(*) FROM " + past.schema() + ".seen WHERE purges = 1 AND committed") == "5");

  past.key("old", ago("30 days"));
  CHECK(retention.purge({.older_than = day, .consumer = "c.v1", .batch = 1}).keys == 1);
  CHECK(past.info("purges") == "2");
  CHECK(past.value("SELECT count(*) FROM " + past.schema() + ".seen WHERE purges = 2 AND committed") == "1");
}

TEST_CASE("a purge notes when it went through everything, and what it removed", "[retention]") {
  Past past;
  past.key("a", ago("2 days"), ago("1 day")).message("m", ago("30 days"));
  Retention retention{past.store()};
  CHECK(retention.purge({.older_than = 100 * day, .consumer = "c.v1"}).rows() == 0);
  CHECK(past.info("purged_at IS NULL AND purged_rows IS NULL") == "t");
  CHECK(retention.purge().rows() == 2);
  CHECK(past.info("purged_at > clock_timestamp() - interval '1 minute' AND purged_rows = 2") == "t");
}

TEST_CASE("a purge goes in batches, pauses between them, and ends when it is asked to", "[retention]") {
  Past past;
  execute("INSERT INTO " + past.keys() +
          " (tenant, consumer, event_id, claim_token, window_ends) SELECT '', 'c.v1', g::text, "
          "gen_random_uuid(), clock_timestamp() - interval '1 day' FROM generate_series(1, 25) g");
  std::stop_source stop;
  int pauses = 0;
  const auto start = std::chrono::steady_clock::time_point{};
  Runtime runtime;
  runtime.clock = [&] { return start; };
  runtime.sleeper = [&](std::chrono::steady_clock::time_point until, const std::stop_token&) {
    CHECK(until - start == 250ms);
    if (++pauses == 2) stop.request_stop();
  };
  Retention retention{past.store(), runtime};
  PurgeReport report = retention.purge({.batch = 10, .pause = 250ms, .stop = stop.get_token()});
  CHECK(report.end == PurgeEnd::stopped);
  CHECK(report.keys == 20);
  CHECK(report.batches == 2);
  CHECK(past.info("purged_at IS NULL") == "t");

  report = Retention{past.store()}.purge({.batch = 10});
  CHECK(report.end == PurgeEnd::finished);
  CHECK(report.keys == 5);
  CHECK(past.count("keys") == "0");
}

TEST_CASE("a table of many blocks is gone through to its end, in batches", "[retention]") {
  Past past;
  execute(
      "INSERT INTO " + past.keys() +
      " (tenant, consumer, event_id, claim_token, committed_at, fingerprint) SELECT '', CASE WHEN g % 3 = 0 "
      "THEN 'other.v1' ELSE 'c.v1' END, g::text, gen_random_uuid(), clock_timestamp() - g * interval "
      "'1 minute', sha256(g::text::bytea) FROM generate_series(1, 6000) g");
  const PurgeReport report =
      Retention{past.store()}.purge({.older_than = 3000min + 30s, .consumer = "c.v1", .batch = 70});
  CHECK(report.keys == 2000);
  CHECK(report.batches >= 2000 / 70);
  CHECK(past.value("SELECT count(*) FROM " + past.keys() + " WHERE consumer = 'other.v1'") == "2000");
  CHECK(past.value("SELECT count(*) FROM " + past.keys() +
                   " WHERE consumer = 'c.v1' AND event_id::int <= 3000") == "2000");
}

TEST_CASE("one janitor at a time: a second one leaves at once, also in the middle of the first",
          "[retention]") {
  Past past;
  past.key("a", ago("2 days"), ago("1 day"));
  Retention retention{past.store()};
  {
    const OpenTransaction other{"SELECT pg_advisory_xact_lock(hashtextextended('" + past.schema() +
                                "', 1768186222))"};
    const PurgeReport report = retention.purge();
    CHECK(report.end == PurgeEnd::busy);
    CHECK(report.rows() == 0);
    CHECK(report.batches == 0);
    CHECK(retention.purge({.older_than = day, .consumer = "c.v1"}).end == PurgeEnd::busy);
    CHECK(past.count("keys") == "1");
    CHECK(past.info("purged_at IS NULL") == "t");
  }
  CHECK(retention.purge().keys == 1);
}

TEST_CASE("rows that somebody holds locked are passed over", "[retention]") {
  Past past;
  past.key("a", ago("2 days"), ago("1 day")).key("b", ago("2 days"), ago("1 day"));
  Retention retention{past.store()};
  {
    OpenTransaction taking_over{
        "UPDATE " + past.keys() +
        " SET window_ends = NULL, committed_at = clock_timestamp() WHERE event_id = 'a'"};
    const PurgeReport report = retention.purge();
    CHECK(report.keys == 1);
    CHECK(report.end == PurgeEnd::finished);
    taking_over.commit();
  }
  CHECK(retention.purge().keys == 0);
  CHECK(past.ids("keys") == "a");
}

TEST_CASE("a delivery of an event whose ended key is being removed waits for the batch, and runs once",
          "[retention]") {
  Past past;
  past.key("ended", ago("2 days"), ago("1 day")).key("in its window", ago("2 days"), from_now("1 day"));
  const IdempotentConsumer consumer{
      "c.v1", past.store(), [&](postgres::Transaction& tx, const Note& note) { past.write(tx, note.id); }};
  // Holds the batch open, with its rows deleted, until the gate opens.
  execute("CREATE FUNCTION " + past.schema() +
          ".hold() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS 'BEGIN PERFORM "
          "pg_advisory_xact_lock(hashtextextended(''" +
          past.schema() + "'', 1)); RETURN NULL; END'; CREATE TRIGGER hold AFTER DELETE ON " + past.keys() +
          " FOR EACH ROW EXECUTE FUNCTION " + past.schema() + ".hold()");
  PurgeReport report;
  Outcome<> outcome;
  std::jthread janitor;  // joined after the gate is open, whatever happens
  std::jthread worker;
  auto gate = std::make_unique<OpenTransaction>("SELECT pg_advisory_xact_lock(hashtextextended('" +
                                                past.schema() + "', 1))");
  const int pid = gate->pid();
  janitor = std::jthread{[&] { report = Retention{past.store()}.purge(); }};
  await_waiter_behind(pid);
  CHECK(consumer(Note{"in its window"}).status == Status::duplicate);
  CHECK(Retention{past.store()}.purge().end == PurgeEnd::busy);
  worker = std::jthread{[&] { outcome = consumer(Note{"ended"}); }};
  await("a delivery that waits for the batch, which waits at the gate", [pid] {
    return query_value("SELECT count(*) FROM pg_stat_activity a, unnest(pg_blocking_pids(a.pid)) b WHERE " +
                       std::to_string(pid) + " = ANY(pg_blocking_pids(b))") != "0";
  });
  CHECK(past.count("effects") == "0");
  gate.reset();
  janitor.join();
  worker.join();
  CHECK(report.keys == 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.attempts == 1);
  CHECK(past.effect_ids() == "ended");
  CHECK(consumer(Note{"ended"}).status == Status::duplicate);
}

TEST_CASE("a forgotten key is gone with its count of starts, and its event runs again", "[retention]") {
  Past past;
  const IdempotentConsumer consumer{
      "c.v1", past.store(), [&](postgres::Transaction& tx, const Note& note) { past.write(tx, note.id); },
      ConsumerOptions{.attempts = Attempts::counted_by_store}};
  CHECK(consumer(Note{"e"}).status == Status::applied);
  CHECK(consumer(Note{"f"}).status == Status::applied);
  CHECK(past.count("attempts") == "2");
  Retention retention{past.store()};
  CHECK(retention.forget(Key{"", "c.v1", "e"}) == Forgotten::forgotten);
  CHECK(past.ids("keys") == "f");
  CHECK(past.ids("attempts") == "f");
  CHECK(past.info("purges") == "1");
  CHECK(retention.forget(Key{"", "c.v1", "e"}) == Forgotten::not_found);
  CHECK(retention.forget(Key{"t", "c.v1", "f"}) == Forgotten::not_found);
  CHECK(past.info("purges") == "1");
  CHECK(consumer(Note{"e"}).status == Status::applied);
  CHECK(consumer(Note{"f"}).status == Status::duplicate);
}

TEST_CASE("a key that is leased, or has an open dead letter, is not forgotten", "[retention]") {
  Past past;
  past.key("live", "NULL", "NULL", from_now("1 hour"))
      .key("endless", "NULL")
      .key("expired", "NULL", "NULL", ago("1 second"))
      .key("open", ago("1 day"))
      .key("closed", ago("1 day"));
  past.letter("open", "NULL").letter("closed", ago("1 minute"));
  Retention retention{past.store()};
  const auto forget = [&](const std::string& id) { return retention.forget(Key{"", "c.v1", id}); };
  CHECK(forget("live") == Forgotten::leased);
  CHECK(forget("endless") == Forgotten::leased);
  CHECK(forget("open") == Forgotten::open_dead_letter);
  CHECK(past.info("purges") == "0");
  CHECK(forget("expired") == Forgotten::forgotten);
  CHECK(forget("closed") == Forgotten::forgotten);
  CHECK(past.ids("keys") == "endless live open");
}

TEST_CASE("a key that a transaction holds is not forgotten behind its back", "[retention]") {
  Past past;
  past.key("e", ago("1 day"), ago("1 hour"));
  Retention retention{past.store()};
  auto taking_over = std::make_unique<OpenTransaction>(
      "UPDATE " + past.keys() +
      " SET committed_at = NULL, window_ends = NULL, leased_until = clock_timestamp() + interval '1 hour'");
  Forgotten answer = Forgotten::not_found;
  std::jthread operator_{[&] { answer = retention.forget(Key{"", "c.v1", "e"}); }};
  await_waiter_behind(taking_over->pid());
  taking_over->commit();
  taking_over.reset();
  operator_.join();
  CHECK(answer == Forgotten::leased);
  CHECK(past.count("keys") == "1");
}

TEST_CASE("a purge of very many keys beside claiming workers loses and doubles nothing", "[retention]") {
  const char* wanted = std::getenv("IDEM_TEST_ROWS");
  const int rows = wanted == nullptr ? 50'000 : std::atoi(wanted);
  constexpr int each = 500;  // of every kind that the workers deliver
  REQUIRE(rows >= each);
  Past past;
  const auto seed = [&](const std::string& prefix, int count, const std::string& columns,
                        const std::string& values) {
    execute("INSERT INTO " + past.keys() + " (tenant, consumer, event_id, claim_token, fingerprint, " +
            columns + ") SELECT '', 'c.v1', '" + prefix + "-' || g, gen_random_uuid(), NULL, " + values +
            " FROM generate_series(0, " + std::to_string(count - 1) + ") g");
  };
  seed("ended", rows, "committed_at, window_ends",
       ago("3 days") + ", " + ago("1 day") + " - g * interval '1 ms'");
  seed("windowed", each, "committed_at, window_ends", ago("3 days") + ", " + from_now("1 day"));
  seed("ever", each, "committed_at", ago("900 days"));
  seed("leased", each, "committed_at, leased_until", "NULL, " + from_now("1 day"));
  execute("ANALYZE " + past.keys() + ";");
  const std::string untouched = "SELECT md5(string_agg(k::text, '|' ORDER BY event_id)) FROM " + past.keys() +
                                " k WHERE event_id ~ '^(windowed|ever|leased)-'";
  const std::string before = past.value(untouched);

  const IdempotentConsumer consumer{
      "c.v1", past.store(), [&](postgres::Transaction& tx, const Note& note) { past.write(tx, note.id); }};
  std::atomic<int> applied = 0;
  std::atomic<int> surprises = 0;
  const auto deliver = [&](const std::string& id) {
    const auto outcome = consumer(Note{id});
    const char kind = id[0] == 'e' ? id[1] : id[0];  // "ended" n, "ever" v
    if (outcome.status == Status::applied) ++applied;
    const bool runs = kind == 'n';
    const bool expected = kind == 'l' ? outcome.status == Status::in_progress
                          : runs ? outcome.status == Status::applied || outcome.status == Status::duplicate
                                 : outcome.status == Status::duplicate;
    if (!expected) ++surprises;
  };
  std::vector<std::thread> workers;
  for (int w = 0; w < 4; ++w)
    workers.emplace_back([&, w] {
      for (int i = 0; i < each; ++i) {
        const int n = w % 2 == 0 ? i : each - 1 - i;  // half of them from the other end
        for (const char* kind : {"ended-", "new-", "windowed-", "ever-", "leased-"})
          deliver(kind + std::to_string(n));
      }
    });
  const PurgeReport report = Retention{past.store()}.purge();
  for (std::thread& worker : workers) worker.join();
  const PurgeReport rest = Retention{past.store()}.purge();

  CHECK(report.end == PurgeEnd::finished);
  CHECK(surprises == 0);
  CHECK(applied == 2 * each);
  CHECK(past.count("effects") == std::to_string(2 * each));
  CHECK(past.value("SELECT count(DISTINCT id) FROM " + past.effects()) == std::to_string(2 * each));
  CHECK(past.value(untouched) == before);
  CHECK(past.value("SELECT count(*) FROM " + past.keys() + " WHERE window_ends <= clock_timestamp()") == "0");
  // Those that a worker took over before their turn are not there to be removed.
  CHECK(report.keys + rest.keys + each >= static_cast<std::uint64_t>(rows));
  CHECK(report.longest_batch < 5s);
  WARN("purged " << report.keys << " keys in " << report.batches << " transactions, the longest took "
                 << std::chrono::duration_cast<std::chrono::microseconds>(report.longest_batch).count()
                 << " us");
}

}  // namespace idem::tests::retaining
