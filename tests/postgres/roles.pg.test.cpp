// SPDX-License-Identifier: MIT
#include <idem/postgres/roles.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>
#include <idem/postgres/dead_letters.hpp>
#include <idem/postgres/outbox.hpp>
#include <idem/postgres/retention.hpp>
#include <idem/postgres/stats.hpp>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::granting {

namespace {

using postgres::Retention;

/// The library's tables, four roles of their own, and stores whose connections are one of them.
class Company : public Playground {
 public:
  explicit Company(const std::string& suffix = "") : Playground{"roles"} {
    const std::string base = schema();
    names_ = {.worker = base + "_w" + suffix,
              .relay = base + "_r" + suffix,
              .janitor = base + "_j" + suffix,
              .operator_ = base + "_o" + suffix};
    PostgresStore{server_dsn(), options()}.create_schema();
    grant();
    execute("GRANT INSERT ON " + effects() + " TO " + quoted(names_.worker));
  }
  ~Company() {
    for (const std::string& name : all()) {
      try {
        execute("DROP OWNED BY " + quoted(name) + "; DROP ROLE " + quoted(name));
      } catch (const std::exception&) {  // the server is private: what is left goes with it
      }
    }
  }

  void grant() const { execute(postgres::roles_sql(schema(), names_)); }

  [[nodiscard]] std::unique_ptr<PostgresStore> store(const std::string& role,
                                                     PostgresOptions its = {}) const {
    its.schema = schema();
    return std::make_unique<PostgresStore>(
        [role] {
          auto connection = std::make_unique<pqxx::connection>(server_dsn());
          pqxx::nontransaction{*connection}.exec("SET ROLE " + quoted(role));
          return connection;
        },
        its);
  }
  /// The SQLSTATE's name if `role` may not run the statement, "done" if it did.
  [[nodiscard]] std::string as(const std::string& role, const std::string& sql) const {
    try {
      execute("SET ROLE " + quoted(role) + "; SET search_path = " + schema() + "; BEGIN; " + sql +
              "; ROLLBACK");
      return "done";
    } catch (const std::exception& e) {
      const std::string text = e.what();
      return text.find("permission denied") != std::string::npos ? "denied" : text;
    }
  }
  /// Every statement is refused to the role for want of a right.
  void refused(const std::string& role, const std::vector<std::string>& statements) const {
    for (const std::string& sql : statements) {
      INFO(sql);
      CHECK(as(role, sql) == "denied");
    }
  }

  [[nodiscard]] const postgres::RoleNames& names() const noexcept { return names_; }
  [[nodiscard]] std::vector<std::string> all() const {
    return {names_.worker, names_.relay, names_.janitor, names_.operator_};
  }
  [[nodiscard]] static std::string quoted(const std::string& name) {
    std::string text = "\"";
    for (const char c : name) text += c == '"' ? "\"\"" : std::string(1, c);
    return text + '"';
  }

 private:
  postgres::RoleNames names_;
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a worker claims, leases, takes over, counts starts and stores values", "[roles]") {
  const Company company;
  const auto store = company.store(company.names().worker);
  store->check();
  store->create_schema();  // nothing to do, and no right needed
  const IdempotentConsumer windowed{"windowed.v1", *store,
                                    [&](postgres::Transaction& tx, const Note& note) {
                                      company.write(tx, note.id);
                                      return note.id;
                                    },
                                    ConsumerOptions{.window = 1h, .attempts = Attempts::counted_by_store}};
  CHECK(windowed(Note{"e"}).status == Status::applied);
  CHECK(windowed(Note{"e"}).replayed);
  execute("UPDATE " + company.keys() + " SET window_ends = clock_timestamp()");
  CHECK(windowed(Note{"e"}).status == Status::applied);
  std::vector<Note> notes{{"b1"}, {"b2"}};
  CHECK(windowed.process_batch(notes).all_acknowledged());

  int starts = 0;
  const IdempotentConsumer leased{"leased.v1", *store, [&](Lease& lease, const Note&) {
                                    if (++starts == 1) throw TransientError{"not yet"};
                                    lease.extend(1min);
                                    return lease.token();
                                  }};
  CHECK(leased(Note{"e"}).status == Status::deferred);  // and releases
  CHECK(leased(Note{"e"}).status == Status::applied);
  CHECK(leased(Note{"e"}).replayed);

  pqxx::connection connection{server_dsn()};
  pqxx::nontransaction{connection}.exec("SET ROLE " + company.names().worker);
  pqxx::work own{connection};
  CHECK(postgres::claim(own, Key{"", "own.v1", "e"}, {}, company.schema()) == postgres::Claimed::fresh);
}

TEST_CASE("a worker publishes and records dead letters", "[roles]") {
  const Company company;
  const auto store = company.store(company.names().worker);
  postgres::DeadLetters dead{*store, {.payload = postgres::KeepPayload::yes}};
  const IdempotentConsumer consumer{"c.v1", *store,
                                    [](postgres::Transaction& tx, const Note& note) {
                                      if (note.text == "bad") throw PermanentError{"no such account"};
                                      postgres::enqueue(tx, {.topic = "t", .key = "k", .payload = "p"});
                                      postgres::enqueue(
                                          tx, {.topic = "t", .payload = "p", .id = "own " + note.id});
                                    },
                                    dead};
  CHECK(told(consumer(Note{"e"})) == "applied");
  CHECK(company.count("outbox") == "2");
  for (int i = 0; i < 2; ++i) CHECK(consumer(Note{"f", "bad"}).action == Action::acknowledge);
  execute("UPDATE " + company.schema() + ".dead_letters SET closed_at = clock_timestamp()");
  CHECK(consumer(Note{"f", "bad"}).action == Action::acknowledge);
  dead.record_undecodable("c.v1", "bytes", "no JSON");
  CHECK(company.value("SELECT recorded FROM " + company.schema() + ".dead_letters WHERE event_id = 'f'") ==
        "3");
}

TEST_CASE("a worker can neither remove keys nor move them, nor read or change what it has published",
          "[roles]") {
  const Company company;
  company.refused(
      company.names().worker,
      {"DELETE FROM keys", "TRUNCATE keys", "UPDATE keys SET event_id = ''", "UPDATE keys SET tenant = ''",
       "UPDATE keys SET consumer = ''", "DELETE FROM attempts", "UPDATE attempts SET event_id = ''",
       "SELECT setval('fences', 1)", "SELECT payload FROM outbox", "SELECT headers FROM outbox",
       "UPDATE outbox SET sent_at = NULL", "DELETE FROM outbox",
       "INSERT INTO outbox (id, tenant, consumer, event_id, topic, key, payload, sent_at) VALUES ('', '', "
       "'', '', '', '', '', NULL)",
       "DELETE FROM dead_letters", "UPDATE dead_letters SET event_id = ''",
       "UPDATE schema_info SET version = 1", "UPDATE schema_info SET purges = 0", "CREATE TABLE mine ()"});
  const auto store = company.store(company.names().worker);
  CHECK(holds(refusal([&] { return Retention{*store}.purge().rows(); }), "42501"));
}

TEST_CASE("a janitor purges, by windows and by consumer and age, without a sight of values and payloads",
          "[roles]") {
  const Company company;
  execute(
      "INSERT INTO " + company.keys() +
      " (tenant, consumer, event_id, claim_token, committed_at, window_ends) SELECT '', 'c.v1', g::text, "
      "gen_random_uuid(), clock_timestamp() - interval '2 days', CASE WHEN g < 5 THEN clock_timestamp() END FROM "
      "generate_series(0, 9) g; INSERT INTO " +
      company.schema() +
      ".attempts (tenant, consumer, event_id, starts, open_starts, times_done, started_at) SELECT '', 'c.v1', "
      "g::text, 1, '{}', 0, clock_timestamp() - interval '2 days' FROM generate_series(5, 12) g; INSERT INTO " +
      company.schema() +
      ".outbox (id, tenant, consumer, event_id, topic, key, payload, sent_at) VALUES ('m', '', '', '', '', '', '', "
      "clock_timestamp() - interval '30 days'); INSERT INTO " +
      company.schema() +
      ".dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code, "
      "first_message, last_kind, last_code, last_message, attempts, delivery_count, closed_at) VALUES "
      "('', 'c.v1', 'd', '', gen_random_uuid(), '', '', '', '', '', '', 1, 1, clock_timestamp() - interval '30 "
      "days')");
  const std::string& janitor = company.names().janitor;
  const auto store = company.store(janitor);
  store->check();
  Retention retention{*store};
  CHECK(retention.purge({.batch = 2}).rows() == 7);
  const auto report = retention.purge({.older_than = 24h, .consumer = "c.v1"});
  CHECK(report.keys == 5);
  CHECK(report.attempts == 8);
  CHECK(company.value("SELECT purges FROM " + company.schema() + ".schema_info") == "2");
  company.refused(
      janitor, {"INSERT INTO keys DEFAULT VALUES", "SELECT value FROM keys", "SELECT fingerprint FROM keys",
                "UPDATE keys SET committed_at = NULL", "SELECT payload FROM outbox",
                "SELECT payload FROM dead_letters", "UPDATE outbox SET due_at = due_at",
                "UPDATE schema_info SET version = 1", "SELECT nextval('fences')", "TRUNCATE keys"});
}

TEST_CASE(
    "an operator looks, forgets keys, and deals with dead letters, without a sight of values and messages",
    "[roles]") {
  const Company company;
  const std::string& role = company.names().operator_;
  const auto store = company.store(role);
  store->check();
  const auto working = company.store(company.names().worker);
  postgres::DeadLetters sink{*working, {.payload = postgres::KeepPayload::yes}};
  const IdempotentConsumer consumer{"c.v1", *working,
                                    [](postgres::Transaction&, const Note& note) {
                                      if (note.text == "bad") throw PermanentError{"no such account"};
                                    },
                                    sink, ConsumerOptions{.attempts = Attempts::counted_by_store}};
  CHECK(told(consumer(Note{"e"})) == "applied");
  for (const char* id : {"f", "g"}) {
    Event event = event_of(Note{id, "bad"});
    event.payload = "bad";
    CHECK(consumer.process(event, Note{id, "bad"}).action == Action::acknowledge);
  }

  CHECK(Retention{*store}.forget(Key{"", "c.v1", "e"}) == postgres::Forgotten::forgotten);
  const postgres::Stats stats = postgres::stats(*store);
  CHECK(stats.dead_letters.open == 2);
  CHECK(stats.purge.removals == 1);

  postgres::DeadLetters dead{*store};
  const auto letters = dead.list();
  REQUIRE(letters.size() == 2);
  CHECK(dead.groups().size() == 1);
  CHECK(dead.payload(letters[0].id) == std::string{"bad"});
  const auto report = dead.redrive(consumer, {}, [](const postgres::StoredDeadLetter& letter) {
    return Note{letter.event_id, *letter.payload};
  });
  CHECK(report.failed == 2);
  CHECK(dead.discard({.consumer = "c.v1"}, "the account is closed") == 2);
  CHECK(company.as(role, "UPDATE keys SET leased_until = clock_timestamp()") == "done");

  company.refused(
      role,
      {"INSERT INTO keys DEFAULT VALUES", "SELECT value FROM keys", "UPDATE keys SET committed_at = NULL",
       "SELECT payload FROM outbox", "SELECT headers FROM outbox", "UPDATE outbox SET sent_at = NULL",
       "DELETE FROM outbox", "DELETE FROM dead_letters", "UPDATE dead_letters SET event_id = ''",
       "UPDATE schema_info SET version = 1", "TRUNCATE keys"});
}

TEST_CASE("a relay reads messages and notes what became of them, and touches nothing else", "[roles]") {
  const Company company;
  const std::string& relay = company.names().relay;
  CHECK(company.as(relay, "SELECT payload, headers FROM outbox FOR UPDATE") == "done");
  CHECK(company.as(relay,
                   "UPDATE outbox SET claimed_by = gen_random_uuid(), claimed_until = now(), due_at = now(), "
                   "attempts = attempts + 1, last_error = '', sent_at = now(), dead_at = NULL") == "done");
  company.refused(relay, {"DELETE FROM outbox", "UPDATE outbox SET payload = ''", "UPDATE outbox SET id = ''",
                          "INSERT INTO outbox DEFAULT VALUES", "SELECT 1 FROM keys", "SELECT 1 FROM attempts",
                          "SELECT 1 FROM dead_letters", "UPDATE schema_info SET purges = 0"});
}

TEST_CASE("the roles' SQL may be run again, and takes back what it does not give", "[roles]") {
  const Company company;
  const std::string& worker = company.names().worker;
  execute("GRANT DELETE, UPDATE (event_id) ON " + company.keys() + " TO " + worker + "; GRANT SELECT ON " +
          company.effects() + " TO " + worker);
  CHECK(company.as(worker, "DELETE FROM keys") == "done");
  company.grant();
  company.refused(worker, {"DELETE FROM keys", "UPDATE keys SET event_id = ''"});
  CHECK(company.as(worker, "SELECT 1 FROM effects") == "done");
  CHECK(company.as(worker, "SELECT 1 FROM keys") == "done");
}

TEST_CASE("any name is a role's name, quoted as needed; what can be none is refused", "[roles]") {
  const Company company{"\" it's \\ $idem$"};
  const auto store = company.store(company.names().worker);
  store->check();
  CHECK(holds(refusal([] { return postgres::roles_sql("idem", {.worker = ""}); }), "worker"));
  CHECK(holds(refusal([] { return postgres::roles_sql("idem", {.operator_ = std::string(64, 'o')}); }),
              "operator"));
}

TEST_CASE("a worker without its rights is told of the SQL that gives them", "[roles]") {
  const Company company;
  execute("REVOKE USAGE ON SEQUENCE " + company.schema() + ".fences FROM " + company.names().worker);
  const auto store = company.store(company.names().worker);
  const IdempotentConsumer leased{"leased.v1", *store, [](Lease&, const Note&) {}};
  const std::string text = refusal([&] { return leased(Note{"e"}); });
  CHECK(holds(text, "42501"));
  CHECK(holds(text, "fences"));
  CHECK(holds(text, "roles_sql()"));
}

}  // namespace idem::tests::granting
