// SPDX-License-Identifier: MIT
#include <idem/postgres/store.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;
using namespace std::chrono_literals;

namespace {

/// A consumer that writes the note's id as its effect.
auto writer(PostgresStore& store, const Playground& place, ConsumerOptions options = {}) {
  return IdempotentConsumer{
      "c", store, [&place](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); },
      options};
}

std::string deliver(PostgresStore& store, const Playground& place, const Note& note) {
  return told(writer(store, place)(note));
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Delivers once, expecting that the worker is stopped and nothing stored; what it is told.
std::string stopped(PostgresStore& store, const Playground& place, const Note& note = {"e"}) {
  std::atomic<int> starts = 0;
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction&, const Note&) { ++starts; }, up_to(3)};
  const std::string why = refusal([&] { return consumer(note); });
  CHECK(starts == 0);
  CHECK(place.effect_ids().empty());
  return why;
}

}  // namespace

TEST_CASE("an event's effect is stored once, with its key") {
  Playground place{"st_once"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  CHECK(deliver(store, place, {"e"}) == "applied");
  CHECK(deliver(store, place, {"e"}) == "duplicate");
  CHECK(deliver(store, place, {"e", "other"}) == "mismatch mismatch");
  CHECK(place.effect_ids() == "e");
  PostgresStore another{server_dsn(), place.options()};
  CHECK(deliver(another, place, {"e"}) == "duplicate");
}

TEST_CASE("a handler's value is stored with the key and replayed, whatever its bytes") {
  Playground place{"st_value"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  std::string value;
  for (int byte = 0; byte < 256; ++byte) value += static_cast<char>(byte);
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction&, const Note&) { return value; }};
  const std::string id = GENERATE(as<std::string>(), "e", "it's", "back\\slash", "caf\xC3\xA9");
  CHECK(consumer(Note{id}).value == value);
  const auto again = consumer(Note{id});
  CHECK(told(again) == "duplicate");
  CHECK(again.replayed);
  CHECK(again.value == value);
}

TEST_CASE("create_schema may be repeated") {
  Playground place{"st_twice"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  CHECK(deliver(store, place, {"e"}) == "applied");
  store.create_schema();
  store.check();
  CHECK(deliver(store, place, {"e"}) == "duplicate");
}

TEST_CASE("create_schema may run eight times at once, whatever the default isolation level") {
  const std::string level = GENERATE(as<std::string>(), "read committed", "repeatable read", "serializable");
  Playground place{"st_eight"};
  const Role role{"LOGIN SUPERUSER"};
  role.set("default_transaction_isolation = '" + level + "'");
  CAPTURE(level);
  // Held by another, the lock makes all eight wait, each with its snapshot taken.
  pqxx::connection holder{server_dsn()};
  pqxx::work held{holder};
  held.exec("SELECT pg_advisory_xact_lock(hashtextextended('" + place.schema() + "', 1768186221))");
  std::vector<std::string> answers(8);
  std::vector<std::thread> threads;
  for (auto& answer : answers)
    threads.emplace_back([&] {
      try {
        PostgresStore store{role.dsn(), place.options()};
        store.create_schema();
        answer = "made";
      } catch (const std::exception& e) {
        answer = e.what();
      }
    });
  try {
    await("eight that wait", [&] {
      return query_value(
                 "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0 AND "
                 "usename = '" +
                 role.name() + "'") == "8";
    });
  } catch (const std::exception& e) {
    UNSCOPED_INFO(e.what());
  }
  held.commit();
  for (auto& thread : threads) thread.join();
  CHECK(answers == std::vector<std::string>(8, "made"));
  PostgresStore store{server_dsn(), place.options()};
  store.check();
}

TEST_CASE("a role without the right to create may call create_schema when it is up to date") {
  Playground place{"st_nocreate"};
  const Role role;
  {
    PostgresStore store{role.dsn(), place.options()};
    CHECK(has(refusal([&] {
                store.create_schema();
                return 0;
              }),
              "42501"));
  }
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  execute("GRANT INSERT ON " + place.effects() + " TO " + role.name());
  PostgresStore store{role.dsn(), place.options()};
  store.create_schema();
  store.check();
  CHECK(deliver(store, place, {"e"}) == "applied");
}

TEST_CASE("check tells of a schema that is missing or older, and takes a newer one") {
  Playground place{"st_check"};
  PostgresStore store{server_dsn(), place.options()};
  const auto why = [&] {
    return refusal([&] {
      store.check();
      return 0;
    });
  };
  CHECK(has(why(), place.schema() + "\" is missing; run create_schema()"));
  store.create_schema();
  CHECK(why().empty());
  execute("UPDATE " + place.schema() + ".schema_info SET version = 0");
  CHECK(has(why(), "missing"));
  execute("UPDATE " + place.schema() + ".schema_info SET version = version - 1");
  CHECK_FALSE(why().empty());
  store.create_schema();
  CHECK(why().empty());
  execute("UPDATE " + place.schema() + ".schema_info SET version = 999");
  CHECK(why().empty());
  store.create_schema();
  CHECK(place.value("SELECT version FROM " + place.schema() + ".schema_info") == "999");
}

TEST_CASE("schema_sql is for psql to run, twice if it must be") {
  if (std::system("psql --version >/dev/null 2>&1") != 0) {
    SUCCEED("no psql here");
    return;
  }
  Playground place{"st_psql"};
  const std::string schema = place.schema() + " \"it's\" \\ \xF0\x9F\x98\x80";
  const std::string file =
      std::string{std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp"} + "/" + place.schema() + ".sql";
  std::ofstream{file} << postgres::schema_sql(schema);
  const std::string run = "psql -qX -v ON_ERROR_STOP=1 -f " + file + " >/dev/null 2>&1";
  CHECK(std::system(run.c_str()) == 0);
  CHECK(std::system(run.c_str()) == 0);
  std::remove(file.c_str());
  PostgresStore store{server_dsn(), {.schema = schema}};
  store.check();
  CHECK(deliver(store, place, {"e"}) == "applied");
  execute("DROP SCHEMA " + postgres::detail::identifier(schema) + " CASCADE");
}

TEST_CASE("any schema name is good that PostgreSQL takes") {
  Playground place{"st_name"};
  const std::string extra = GENERATE(as<std::string>(), " a b", "\"", "'", "UPPER", "\\", "$1", "{}", "{0}",
                                     "; DROP", ".", "%s", "\xF0\x9F\x98\x80", "\n");
  const std::string schema = place.schema().substr(0, 40) + extra;
  CAPTURE(schema);
  PostgresStore store{server_dsn(), {.schema = schema}};
  store.create_schema();
  store.create_schema();
  store.check();
  CHECK(deliver(store, place, {"e"}) == "applied");
  CHECK(deliver(store, place, {"e"}) == "duplicate");
  {
    pqxx::connection connection{server_dsn()};
    pqxx::work tx{connection};
    CHECK(postgres::claim(tx, Key{"", "c", "e"}, fingerprint_of(std::string{}), schema) ==
          postgres::Claimed::duplicate);
  }
  execute("DROP SCHEMA " + postgres::detail::identifier(schema) + " CASCADE");
}

TEST_CASE("tenants, consumer names and ids are bytes, whatever they spell in SQL") {
  Playground place{"st_bytes"};
  const std::string setting = GENERATE(as<std::string>(), "", "app.tenant");
  PostgresOptions options = place.options();
  options.tenant_setting = setting;
  const bool conforming = GENERATE(true, false);
  PostgresStore store{
      conforming ? "" : "options='-c standard_conforming_strings=off -c escape_string_warning=off'", options};
  store.create_schema();
  const std::vector<std::string> texts{"'",
                                       "\"",
                                       "\\",
                                       "\\'",
                                       "'; DROP TABLE x; --",
                                       "%",
                                       "$1",
                                       "{}",
                                       "a\nb",
                                       "a\rb",
                                       "\t",
                                       "a ",
                                       " a",
                                       "a",
                                       "A",
                                       "\xC3\xA9",
                                       "e\xCC\x81",
                                       "\xF0\x9F\x98\x80",
                                       "\x01",
                                       "\\x41",
                                       "\\101",
                                       "\xEF\xBB\xBF"
                                       "a",
                                       "--",
                                       "/*",
                                       "$$",
                                       "::int"};
  int handled = 0;
  for (const auto& text : texts) {
    CAPTURE(text);
    const bool blank = text == "\t";
    IdempotentConsumer consumer{
        blank ? "c" : text, store, [&](postgres::Transaction& tx, const Note& note) {
          ++handled;
          CHECK(postgres::exec(tx, "SELECT $1 = " + postgres::detail::literal(note.text), note.text)[0][0]
                    .as<bool>());
          if (setting.empty()) return;
          const auto seen = tx.exec(std::string{"SELECT current_setting('app.tenant')"});
          CHECK(seen[0][0].c_str() == text);
        }};
    const Note note{blank ? "x" : text, text, text};
    CHECK(told(consumer(note)) == "applied");
    CHECK(told(consumer(note)) == "duplicate");
    const auto stored = place.value(
        "SELECT count(*) FROM " + place.keys() + " WHERE encode(convert_to(tenant, 'UTF8'), 'hex') = '" +
        [&] {
          std::string hex;
          postgres::detail::append_hex(hex, std::as_bytes(std::span{text.data(), text.size()}));
          return hex;
        }() +
        "'");
    CHECK(stored == "1");
  }
  CHECK(handled == static_cast<int>(texts.size()));
}

TEST_CASE("a database that cannot hold the id refuses the key") {
  Playground place{"st_latin1"};
  const Database database{"ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"};
  PostgresStore store{database.dsn(), place.options()};
  store.create_schema();
  int starts = 0;
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction&, const Note&) { ++starts; }, up_to(3)};
  const auto outcome = consumer(Note{"\xF0\x9F\x98\x80"});
  CHECK(told(outcome) == "rejected invalid_key");
  CHECK(outcome.action == Action::dead_letter);
  CHECK(starts == 0);
  CHECK(told(consumer(Note{"caf\xC3\xA9"})) == "applied");
  CHECK(told(consumer(Note{"caf\xC3\xA9"})) == "duplicate");
}

TEST_CASE("a missing schema or table stops the worker, and the text names the way out") {
  Playground place{"st_missing"};
  PostgresStore nowhere{server_dsn(), {.schema = place.schema() + "_not"}};
  CHECK(has(stopped(nowhere, place), "run create_schema()"));
  PostgresStore store{server_dsn(), place.options()};
  CHECK(has(stopped(store, place), "run create_schema()"));
  store.create_schema();
  execute("ALTER TABLE " + place.keys() + " RENAME COLUMN claim_token TO other");
  CHECK_FALSE(stopped(store, place).empty());
  execute("DROP TABLE " + place.keys());
  CHECK(has(stopped(store, place), "run create_schema()"));
}

TEST_CASE("a table that goes while the worker runs stops it, though the session is prepared") {
  Playground place{"st_gone"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  IdempotentConsumer consumer{"c", store, [](postgres::Transaction&, const Note&) {}};
  CHECK(told(consumer(Note{"e"})) == "applied");
  execute("DROP TABLE " + place.keys());
  CHECK(has(stopped(store, place), "run create_schema()"));
  execute("DROP TABLE " + place.schema() + ".schema_info");
  store.create_schema();
  CHECK(told(consumer(Note{"e"})) == "applied");
}

TEST_CASE("a missing right stops the worker, and the text names it") {
  Playground place{"st_right"};
  PostgresStore{server_dsn(), place.options()}.create_schema();
  const Role role;
  const std::string grants = GENERATE(as<std::string>(), "", "USAGE", "USAGE SELECT", "USAGE INSERT");
  CAPTURE(grants);
  if (has(grants, "USAGE")) execute("GRANT USAGE ON SCHEMA " + place.schema() + " TO " + role.name());
  if (has(grants, "SELECT")) execute("GRANT SELECT ON " + place.keys() + " TO " + role.name());
  if (has(grants, "INSERT")) execute("GRANT INSERT ON " + place.keys() + " TO " + role.name());
  PostgresStore store{role.dsn(), place.options()};
  const std::string why = stopped(store, place);
  CHECK(has(why, "42501"));
  CHECK(has(why, "grant"));
}

TEST_CASE("a missing right to read the stored row stops the worker") {
  Playground place{"st_columns"};
  PostgresStore admin{server_dsn(), place.options()};
  admin.create_schema();
  const Role role;
  execute("GRANT USAGE ON SCHEMA " + place.schema() + " TO " + role.name() +
          "; GRANT INSERT, SELECT (tenant, consumer, event_id) ON " + place.keys() + " TO " + role.name() +
          "; GRANT INSERT ON " + place.effects() + " TO " + role.name());
  PostgresStore store{role.dsn(), place.options()};
  CHECK(deliver(store, place, {"e"}) == "applied");
  CHECK(has(refusal([&] { return deliver(store, place, {"e"}); }), "42501"));
}

TEST_CASE("a missing right to store the handler's value stops the worker, and dead-letters nothing") {
  Playground place{"st_update"};
  PostgresStore{server_dsn(), place.options()}.create_schema();
  const Role role;
  execute("GRANT USAGE ON SCHEMA " + place.schema() + " TO " + role.name() + "; GRANT SELECT, INSERT ON " +
          place.keys() + " TO " + role.name());
  PostgresStore store{role.dsn(), place.options()};
  IdempotentConsumer consumer{"c", store,
                              [](postgres::Transaction&, const Note&) { return std::string{"v"}; }};
  std::string outcome;
  const std::string why = refusal([&] { return outcome = told(consumer(Note{"e"})); });
  CHECK(outcome.empty());
  CHECK(has(why, "42501"));
  CHECK(place.count("keys") == "0");
}

TEST_CASE("a row that row security hides, or refuses, stops the worker") {
  Playground place{"st_hidden"};
  PostgresOptions options = place.options();
  options.tenant_setting = "app.tenant";
  PostgresStore admin{server_dsn(), options};
  admin.create_schema();
  const Role role;
  role.may_work_in(place);
  execute("INSERT INTO " + place.keys() + " VALUES ('b', 'c', 'e', gen_random_uuid()); ALTER TABLE " +
          place.keys() + " ENABLE ROW LEVEL SECURITY; CREATE POLICY made ON " + place.keys() +
          " FOR INSERT WITH CHECK (tenant <> 'c'); CREATE POLICY seen ON " + place.keys() +
          " FOR SELECT USING (fingerprint IS NOT NULL)");
  PostgresStore store{role.dsn(), options};
  CHECK(has(stopped(store, place, {"f", "", "c"}), "42501"));
  CHECK(has(stopped(store, place, {"e", "", "b"}), "row security hides it"));
  // A policy of another tenant's, while the event's tenant is not set: refused at once.
  execute("ALTER POLICY seen ON " + place.keys() + " USING (tenant = current_setting('app.tenant', true))");
  PostgresStore without{role.dsn(), place.options()};
  CHECK(has(stopped(without, place, {"e", "", "b"}), "row security"));
}

TEST_CASE(
    "tenant_setting is seen by the handler, and row security enforces it on claim, look-up and effect") {
  Playground place{"st_tenant"};
  PostgresOptions options = place.options();
  options.tenant_setting = "app.tenant";
  PostgresStore{server_dsn(), options}.create_schema();
  const Role role;
  role.may_work_in(place);
  execute("ALTER TABLE " + place.effects() + " ADD tenant text DEFAULT current_setting('app.tenant', true)");
  for (const auto& table : {place.keys(), place.effects()})
    execute("ALTER TABLE " + table + " ENABLE ROW LEVEL SECURITY; ALTER TABLE " + table +
            " FORCE ROW LEVEL SECURITY; CREATE POLICY own ON " + table +
            " USING (tenant = current_setting('app.tenant'))");
  PostgresStore store{role.dsn(), options};
  std::string seen;
  IdempotentConsumer consumer{
      "c", store, [&](postgres::Transaction& tx, const Note& note) {
        seen = tx.exec(std::string{"SELECT current_setting('app.tenant')"})[0][0].c_str();
        place.write(tx, note.id);
        return std::string{tx.exec("SELECT count(*) FROM " + place.effects())[0][0].c_str()};
      }};
  for (const std::string tenant : {"a", "b", "o'c", "\\", "", "\xC3\xA9"}) {
    CAPTURE(tenant);
    const auto outcome = consumer(Note{"e", "", tenant});
    CHECK(told(outcome) == "applied");
    CHECK(outcome.value == "1");
    CHECK(seen == tenant);
    const auto again = consumer(Note{"e", "", tenant});
    CHECK(told(again) == "duplicate");
    CHECK(again.value == "1");
    CHECK(told(consumer(Note{"e", "other", tenant})) == "mismatch mismatch");
  }
  CHECK(place.count("effects") == "6");
}

TEST_CASE("a worker whose transactions are read only by default is told so") {
  Playground place{"st_read_only"};
  PostgresStore admin{server_dsn(), place.options()};
  admin.create_schema();
  PostgresStore store{"options='-c default_transaction_read_only=on'", place.options()};
  const bool known = GENERATE(false, true);
  if (known) execute("INSERT INTO " + place.keys() + " VALUES ('', 'c', 'e', gen_random_uuid())");
  CHECK(has(stopped(store, place), "default_transaction_read_only"));
}

TEST_CASE("a wrong database, role or connection string stops the worker") {
  Playground place{"st_refused"};
  const Role nologin{"NOLOGIN"};
  const auto why = [&](const std::string& dsn) {
    PostgresStore store{dsn, place.options()};
    const std::string at_start = refusal([&] {
      store.check();
      return 0;
    });
    const std::string at_work = stopped(store, place);
    CHECK(at_start == at_work);
    return at_work;
  };
  CHECK(has(why("dbname=" + place.schema() + "_not"), "3D000"));
  CHECK(has(why("user=" + place.schema() + "_not"), "28000"));
  CHECK(has(why(nologin.dsn()), "28000"));
  CHECK(has(why("no such = thing ="), "08001"));
  CHECK(has(why("dbname"), "connection string"));
}

TEST_CASE("a role without the right to connect stops the worker") {
  Playground place{"st_connect"};
  const Database database;
  execute("REVOKE CONNECT ON DATABASE " + database.name() + " FROM PUBLIC");
  const Role role;
  PostgresStore store{database.dsn() + " " + role.dsn(), place.options()};
  CHECK(has(stopped(store, place), "42501"));
}

TEST_CASE("a factory that returns nothing stops the worker; one that throws is an outage") {
  Playground place{"st_factory"};
  PostgresStore empty{[] { return std::unique_ptr<pqxx::connection>{}; }, place.options()};
  CHECK(has(stopped(empty, place), "factory"));
  PostgresStore broken{[]() -> std::unique_ptr<pqxx::connection> { throw std::runtime_error{"no route"}; },
                       place.options()};
  const auto outcome = writer(broken, place)(Note{"e"});
  CHECK(outcome.status == Status::deferred);
  PostgresStore good{[] { return std::make_unique<pqxx::connection>(server_dsn()); }, place.options()};
  good.create_schema();
  CHECK(deliver(good, place, {"e"}) == "applied");
}

TEST_CASE("a server that cannot be reached defers every message, however often it was delivered") {
  Playground place{"st_outage"};
  PostgresStore store{"host=" + server_socket_dir() + "/nowhere", place.options()};
  int starts = 0;
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction&, const Note&) { ++starts; }, up_to(2),
                              Redeliver{Immediate{} | MaxAttempts{3}}};
  const auto count = GENERATE(std::int64_t{1}, std::int64_t{3}, std::int64_t{1000000});
  Note note{"e"};
  note.delivery_count = count;
  const auto outcome = consumer(note);
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.attempts == 0);
  CHECK(starts == 0);
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::reconnect);
  CHECK(has(refusal([&] {
              store.check();
              return 0;
            }),
            "cannot be reached"));
}

TEST_CASE("a server that has no connection left defers the message") {
  Playground place{"st_full"};
  const Role role{"LOGIN CONNECTION LIMIT 1"};
  PostgresStore{server_dsn(), place.options()}.create_schema();
  pqxx::connection the_one{role.dsn()};
  PostgresStore store{role.dsn(), place.options()};
  const auto outcome = writer(store, place)(Note{"e"});
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.attempts == 0);
}

TEST_CASE("options that no store can have are refused") {
  CHECK_THROWS_AS(PostgresStore("", {.schema = ""}), ConfigurationError);
  CHECK_THROWS_AS(PostgresStore("", {.schema = std::string(64, 'x')}), ConfigurationError);
  CHECK_THROWS_AS(PostgresStore("", {.schema = std::string("a\0b", 3)}), ConfigurationError);
  CHECK_THROWS_AS(PostgresStore("", {.max_connections = 0}), ConfigurationError);
}

TEST_CASE("a caller's reclassification rules") {
  Playground place{"st_reclassify"};
  PostgresOptions options = place.options();
  options.reclassify = {{"P0001", ErrorClass::transient},
                        {"40001", ErrorClass::permanent},
                        {"22012", ErrorClass::configuration}};
  PostgresStore store{server_dsn(), options};
  store.create_schema();
  const auto raise = [&](const std::string& state) {
    IdempotentConsumer consumer{"c", store,
                                [&](postgres::Transaction& tx, const Note&) {
                                  tx.exec("DO $do$ BEGIN RAISE SQLSTATE '" + state + "'; END $do$");
                                },
                                up_to(3)};
    return consumer(Note{"e"});
  };
  const auto later = raise("P0001");
  CHECK(told(later) == "deferred P0001");
  CHECK(later.attempts == 3);
  CHECK(told(raise("40001")) == "rejected 40001");
  CHECK(has(refusal([&] { return raise("22012"); }), "22012"));
  CHECK(told(raise("P0002")) == "rejected P0002");
}
