// SPDX-License-Identifier: MIT
#include <idem/postgres/stats.hpp>

#include <chrono>
#include <string>

#include <idem/postgres/retention.hpp>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::measuring {

namespace {

using postgres::Stats;

class Tables : public Playground {
 public:
  explicit Tables(std::string dsn = server_dsn()) : Playground{"stats"}, store{std::move(dsn), options()} {
    store.create_schema();
  }

  void message(const std::string& id, const std::string& key, const std::string& columns = "",
               const std::string& values = "") const {
    execute(
        "INSERT INTO " + schema() + ".outbox (id, tenant, consumer, event_id, topic, key, payload, headers" +
        (columns.empty() ? "" : ", " + columns) + ") VALUES ('" + id +
        "', 'marker-tenant', 'c.v1', 'marker-event', " + "'marker-topic', '" + key +
        "', 'marker-payload', '{marker-name,marker-value}'" + (values.empty() ? "" : ", " + values) + ")");
  }
  void letter(const std::string& id, const std::string& first, const std::string& last,
              const std::string& closed = "NULL") const {
    execute(
        "INSERT INTO " + schema() +
        ".dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code, "
        "first_message, last_kind, last_code, last_message, attempts, delivery_count, first_at, last_at, closed_at, "
        "payload, payload_kept) VALUES ('', 'c.v1', '" +
        id + "', '', gen_random_uuid(), '', '', 'marker-error', '', '', '', 1, 1, " + first + ", " + last +
        ", " + closed + ", 'marker-payload', 'original')");
  }
  void key(const std::string& id, const std::string& committed, const std::string& window_ends,
           const std::string& leased_until = "NULL") const {
    execute(
        "INSERT INTO " + keys() +
        " (tenant, consumer, event_id, claim_token, committed_at, window_ends, leased_until) VALUES ('', 'c.v1', '" +
        id + "', gen_random_uuid(), " + committed + ", " + window_ends + ", " + leased_until + ")");
  }

  PostgresStore store;
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string ago(const std::string& span) { return "clock_timestamp() - interval '" + span + "'"; }
std::string from_now(const std::string& span) { return "clock_timestamp() + interval '" + span + "'"; }

/// Within the time that a test may take.
bool about(Duration age, Duration expected) { return age >= expected && age < expected + 1min; }

}  // namespace

TEST_CASE("an empty store has nothing waiting, and nothing old", "[stats]") {
  const Tables tables;
  const Stats stats = postgres::stats(tables.store);
  CHECK(stats.schema_version == postgres::schema_version);
  CHECK_FALSE(stats.keys.rows.has_value());
  CHECK(stats.keys.bytes > 0);
  CHECK(stats.outbox.claimable == 0);
  CHECK(stats.outbox.oldest_claimable_age == Duration{0});
  CHECK(stats.dead_letters.oldest_age == Duration{0});
  CHECK(stats.leases.oldest_overdue_age == Duration{0});
  CHECK_FALSE(stats.purge.age.has_value());
}

TEST_CASE("a message that is parked, or behind one that is, raises no age", "[stats]") {
  const Tables tables;
  tables.message("parked", "k", "due_at, enqueued_at", from_now("2 hours") + ", " + ago("3 hours"));
  tables.message("behind it", "k", "due_at, enqueued_at", ago("3 hours") + ", " + ago("3 hours"));
  tables.message("being sent", "l", "due_at, claimed_until", ago("3 hours") + ", " + from_now("1 minute"));
  tables.message("behind that", "l", "due_at, enqueued_at", ago("3 hours") + ", " + ago("3 hours"));
  Stats stats = postgres::stats(tables.store);
  CHECK(stats.outbox.claimable == 0);
  CHECK(stats.outbox.behind == 2);
  CHECK(stats.outbox.parked == 1);
  CHECK(stats.outbox.sending == 1);
  CHECK(stats.outbox.oldest_claimable_age == Duration{0});

  tables.message("of a key of its own", "m", "due_at, enqueued_at",
                 ago("10 minutes") + ", " + ago("3 hours"));
  tables.message("without a key", "", "due_at, enqueued_at", ago("5 minutes") + ", " + ago("5 minutes"));
  stats = postgres::stats(tables.store);
  CHECK(stats.outbox.claimable == 2);
  CHECK(about(stats.outbox.oldest_claimable_age, 10min));
}

TEST_CASE(
    "messages that wait for the one before them alone are claimable; sent and dead ones are not waited for",
    "[stats]") {
  const Tables tables;
  tables.message("sent", "k", "sent_at", ago("1 day"));
  tables.message("dead", "k", "dead_at, last_error", ago("1 day") + ", 'marker-error'");
  tables.message("first", "k", "due_at, enqueued_at, last_error",
                 ago("20 minutes") + ", " + ago("20 minutes") + ", 'marker-error'");
  tables.message("second", "k");
  tables.message("claim that ended", "l", "claimed_until", ago("1 second"));
  const Stats stats = postgres::stats(tables.store);
  CHECK(stats.outbox.claimable == 3);
  CHECK(stats.outbox.behind == 0);
  CHECK(stats.outbox.dead == 1);
  CHECK(stats.outbox.failing == 1);
  CHECK(about(stats.outbox.oldest_claimable_age, 20min));
}

TEST_CASE("dead letters are counted while they are open", "[stats]") {
  const Tables tables;
  tables.letter("a", ago("5 hours"), ago("2 hours"));
  tables.letter("b", ago("3 hours"), ago("59 minutes"));
  tables.letter("c", ago("9 hours"), ago("1 minute"), ago("1 minute"));
  const Stats stats = postgres::stats(tables.store);
  CHECK(stats.dead_letters.open == 2);
  CHECK(stats.dead_letters.last_hour == 1);
  CHECK(about(stats.dead_letters.oldest_age, 5h));
}

TEST_CASE("leases are live, or overdue when they ended and nobody has taken over", "[stats]") {
  const Tables tables;
  tables.key("live", "NULL", "NULL", from_now("1 minute"));
  tables.key("endless", "NULL", "NULL");
  tables.key("overdue", "NULL", "NULL", ago("2 hours"));
  tables.key("rejected", "NULL", "NULL", ago("5 hours"));
  tables.letter("rejected", ago("5 hours"), ago("5 hours"));
  tables.key("done", ago("1 day"), "NULL");
  const Stats stats = postgres::stats(tables.store);
  CHECK(stats.leases.live == 2);
  CHECK(stats.leases.overdue == 1);
  CHECK(about(stats.leases.oldest_overdue_age, 2h));
}

TEST_CASE("keys are estimated, and those that wait for a purge are counted until it comes", "[stats]") {
  const Tables tables;
  tables.key("a", ago("3 days"), ago("2 hours"));
  tables.key("b", ago("3 days"), ago("1 hour"));
  tables.key("in its window", ago("3 days"), from_now("1 hour"));
  tables.key("open letter", ago("3 days"), ago("1 day"));
  tables.letter("open letter", ago("1 day"), ago("1 day"));
  execute("ANALYZE " + tables.keys());
  Stats stats = postgres::stats(tables.store);
  CHECK(stats.keys.rows.value_or(0) == 4);
  CHECK(stats.keys.ended == 2);
  CHECK(about(stats.keys.oldest_ended_age, 2h));
  CHECK(stats.purge.removals == 0);

  CHECK(postgres::Retention{tables.store}.purge().keys == 2);
  stats = postgres::stats(tables.store);
  CHECK(stats.keys.ended == 0);
  CHECK(stats.keys.oldest_ended_age == Duration{0});
  REQUIRE(stats.purge.age.has_value());
  CHECK(about(*stats.purge.age, 0s));
  CHECK(stats.purge.rows == 2);
  CHECK(stats.purge.removals == 1);
}

TEST_CASE("the server's time zone and date style change no number", "[stats]") {
  const Tables tables{"options='-c timezone=Asia/Tokyo -c datestyle=German -c intervalstyle=iso_8601'"};
  tables.message("m", "k", "due_at, enqueued_at", ago("26 hours") + ", " + ago("26 hours"));
  tables.letter("a", ago("40 days"), ago("40 days"));
  const Stats stats = postgres::stats(tables.store);
  CHECK(about(stats.outbox.oldest_claimable_age, 26h));
  CHECK(about(stats.dead_letters.oldest_age, 40 * 24h));
}

TEST_CASE("a schema that is missing is named", "[stats]") {
  const Playground playground{"stats"};
  const PostgresStore store{server_dsn(), playground.options()};
  CHECK(holds(refusal([&] { return postgres::stats(store).schema_version; }), "create_schema()"));
}

TEST_CASE("the numbers as Prometheus reads them hold nothing of a message", "[stats]") {
  const Tables tables;
  tables.message("marker-id", "marker-key", "due_at, enqueued_at, last_error",
                 ago("90 seconds") + ", " + ago("90 seconds") + ", 'marker-error'");
  tables.letter("marker-event", ago("1 hour"), ago("1 hour"));
  const std::string text = postgres::prometheus_text(postgres::stats(tables.store));
  CHECK(holds(text,
              "# TYPE idem_outbox_messages gauge\n"
              "idem_outbox_messages{state=\"claimable\"} 1\n"));
  CHECK(holds(text, "\nidem_dead_letters_open 1\n"));
  CHECK(holds(text, "\nidem_outbox_oldest_claimable_age_seconds 9"));
  CHECK_FALSE(holds(text, "marker"));
  CHECK_FALSE(holds(text, "\nidem_purge_age_seconds "));
}

TEST_CASE("every number of Stats is written, each in its own place", "[stats]") {
  Stats stats;
  stats.keys = {.rows = 1, .bytes = 2, .ended = 3, .oldest_ended_age = 4s};
  stats.leases = {.live = 5, .overdue = 6, .oldest_overdue_age = 7s};
  stats.outbox = {.claimable = 8,
                  .behind = 9,
                  .parked = 10,
                  .sending = 11,
                  .dead = 12,
                  .failing = 13,
                  .oldest_claimable_age = 1500ms,
                  .bytes = 15};
  stats.dead_letters = {.open = 16, .last_hour = 17, .oldest_age = 18s};
  stats.purge = {.age = 19s, .rows = 20, .removals = 21};
  stats.schema_version = 22;
  std::string samples;
  const std::string text = "\n" + postgres::prometheus_text(stats);
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++at)
    if (at + 1 < text.size() && text[at + 1] != '#')
      samples += text.substr(at + 1, text.find('\n', at + 1) - at);
  CHECK(
      samples ==
      "idem_keys_rows 1\nidem_keys_bytes 2\nidem_keys_ended 3\nidem_keys_ended_oldest_age_seconds 4\n"
      "idem_leases{state=\"live\"} 5\nidem_leases{state=\"overdue\"} 6\n"
      "idem_leases_overdue_oldest_age_seconds 7\nidem_outbox_messages{state=\"claimable\"} 8\n"
      "idem_outbox_messages{state=\"behind\"} 9\nidem_outbox_messages{state=\"parked\"} 10\n"
      "idem_outbox_messages{state=\"sending\"} 11\nidem_outbox_messages{state=\"dead\"} 12\n"
      "idem_outbox_failing_messages 13\nidem_outbox_oldest_claimable_age_seconds 1.5\nidem_outbox_bytes 15\n"
      "idem_dead_letters_open 16\nidem_dead_letters_open_last_hour 17\n"
      "idem_dead_letters_oldest_age_seconds 18\nidem_purge_age_seconds 19\nidem_purge_rows 20\n"
      "idem_key_removals_total 21\nidem_schema_version 22\n");
}

}  // namespace idem::tests::measuring
