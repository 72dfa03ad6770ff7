// SPDX-License-Identifier: MIT
// PostgreSQL as people run it: behind a transaction pooler, under row security, with settings on the role.
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "faults/ledger.hpp"
#include "faults/slow_commit.hpp"
#include "postgres/playground.hpp"
#include "support/pgbouncer.hpp"

#include "support/catch.hpp"

namespace idem::tests::deployed {

using namespace std::chrono_literals;

namespace {

/// A playground behind a pooler with two connections to the server.
struct Pooled {
  Playground place{"pooled"};
  PgBouncer pooler{2, server_socket_dir()};
  std::string insert = "INSERT INTO " + place.effects() + " (id, note) VALUES ($1, $2)";

  Pooled() { store(1)->create_schema(); }

  [[nodiscard]] std::unique_ptr<PostgresStore> store(std::size_t connections) const {
    return std::make_unique<PostgresStore>(
        pooler.dsn(), PostgresOptions{.schema = place.schema(), .max_connections = connections});
  }
  /// How many effects there are, and of how many events.
  [[nodiscard]] std::string effects() const {
    return place.value("SELECT count(*) || ' of ' || count(DISTINCT id) FROM " + place.effects());
  }
};

/// Runs `work(thread)` on so many threads; returns what they threw.
std::string on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::string> thrown(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&work, &what = thrown[static_cast<std::size_t>(i)], i] {
      try {
        work(i);
      } catch (const std::exception& e) {
        what = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  std::string all;
  for (const auto& what : thrown)
    if (!what.empty()) all += what + "\n";
  return all;
}

/// How often each answer was given.
class Tally {
 public:
  template <class R>
  void add(const Outcome<R>& outcome) {
    const std::lock_guard lock{mutex_};
    ++answers_[told(outcome)];
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    for (const auto& [answer, times] : answers_)
      text += (text.empty() ? "" : ", ") + std::to_string(times) + " " + answer;
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> answers_;
};

Runtime without_pauses() {
  return {.sleeper = [](auto, const std::stop_token&) {}};
}

/// 500 events from eight threads of three processes' stores, twice each, and every tenth with another content.
void deliver_500(const Pooled& pooled, const std::function<Outcome<>(PostgresStore&, const Note&)>& deliver) {
  std::vector<std::unique_ptr<PostgresStore>> stores;
  for (int i = 0; i < 3; ++i) stores.push_back(pooled.store(3));
  Tally first;
  Tally again;
  Tally changed;
  CHECK(on_threads(8, [&](int thread) {
          PostgresStore& store = *stores[static_cast<std::size_t>(thread) % stores.size()];
          // Neighbours share their events, at the same time.
          for (int event = thread / 2; event < 500; event += 4) {
            const std::string id = std::to_string(event);
            first.add(deliver(store, {id, "x"}));
            again.add(deliver(store, {id, "x", {}, 2}));
            if (event % 10 == 0) changed.add(deliver(store, {id, "y", {}, 3}));
          }
        }).empty());
  CHECK(first.text() == "500 applied, 500 duplicate");
  CHECK(again.text() == "1000 duplicate");
  CHECK(changed.text() == "100 mismatch mismatch");
  CHECK(pooled.effects() == "500 of 500");
  CHECK(pooled.place.count("keys") == "500");
}

}  // namespace

TEST_CASE("behind a transaction pooler, eight threads on two server connections apply 500 events once",
          "[deployments]") {
  const Pooled pooled;
  deliver_500(pooled, [&](PostgresStore& store, const Note& note) {
    return IdempotentConsumer{"c", store, [&](postgres::Transaction& tx, const Note& n) {
                                // The same text twice: from its second use on it would be prepared.
                                postgres::exec(tx, "SELECT 1 WHERE $1 <> ''", n.text);
                                postgres::exec(tx, "SELECT 1 WHERE $1 <> ''", n.id);
                                postgres::require_rows(1, postgres::exec(tx, pooled.insert, n.id, n.text));
                                postgres::enqueue(tx, {.topic = "t", .key = n.id, .payload = n.text});
                              }}(note);
  });
  CHECK(pooled.place.count("outbox") == "500");
}

TEST_CASE("behind a transaction pooler, an effect that is said is applied once", "[deployments]") {
  const Pooled pooled;
  deliver_500(pooled, [&](PostgresStore& store, const Note& note) {
    return IdempotentConsumer{"c", store, [&](const Note& n) {
                                return postgres::Statement{pooled.insert, n.id, n.text}.affecting(1);
                              }}(note);
  });
}

TEST_CASE("behind a transaction pooler, batches that overlap apply each event once", "[deployments]") {
  const Pooled pooled;
  const auto one = pooled.store(3);
  const auto other = pooled.store(3);
  Tally tally;
  CHECK(on_threads(4, [&](int thread) {
          const IdempotentConsumer consumer{"c", thread % 2 == 0 ? *one : *other,
                                            [&](postgres::Transaction& tx, const Note& note) {
                                              postgres::exec(tx, pooled.insert, note.id, note.text);
                                              return note.id;
                                            }};
          for (int start = 0; start < 100; start += 10) {
            std::vector<Note> notes;
            for (int i = 0; i < 20; ++i) notes.push_back({std::to_string((start + i) % 100), {}});
            for (const auto& outcome : consumer.process_batch(notes).outcomes) tally.add(outcome);
          }
        }).empty());
  CHECK(tally.text() == "100 applied, 700 duplicate");
  CHECK(pooled.effects() == "100 of 100");
}

TEST_CASE("behind a transaction pooler, a lease is one worker's, and its starts are counted",
          "[deployments]") {
  const Pooled pooled;
  const auto one = pooled.store(3);
  const auto other = pooled.store(3);
  std::mutex mutex;
  std::map<std::string, int> runs;
  Tally values;
  CHECK(on_threads(8, [&](int thread) {
          const IdempotentConsumer consumer{"c", thread % 2 == 0 ? *one : *other,
                                            [&](Lease& lease, const Note& note) {
                                              static_cast<void>(lease.extend(1min));
                                              const std::lock_guard lock{mutex};
                                              ++runs[note.id];
                                              return note.id;
                                            },
                                            ConsumerOptions{.attempts = Attempts::counted_by_store}};
          for (int event = 0; event < 25; ++event) {
            Outcome<std::string> outcome;
            do outcome = consumer(Note{std::to_string(event)});
            while (outcome.status == Status::in_progress);
            CHECK(outcome.value == std::to_string(event));
            values.add(outcome);
          }
        }).empty());
  CHECK(values.text() == "25 applied, 175 duplicate");
  CHECK(runs.size() == 25);
  for (const auto& [event, times] : runs) CHECK(times == 1);
}

TEST_CASE("behind a transaction pooler, what fails is rolled back and retried", "[deployments]") {
  const Pooled pooled;
  const auto store = pooled.store(2);
  const std::string how = GENERATE(as<std::string>(), "throws", "divides by zero", "swallows");
  CAPTURE(how);
  int starts = 0;
  const IdempotentConsumer consumer{"c", *store,
                                    [&](postgres::Transaction& tx, const Note& note) {
                                      postgres::exec(tx, pooled.insert, note.id, note.text);
                                      if (++starts % 2 == 0) return;
                                      if (how == "throws") throw TransientError{"later"};
                                      try {
                                        tx.exec(std::string{"SELECT 1/0"});
                                      } catch (const pqxx::sql_error&) {
                                        if (how != "swallows") throw TransientError{"later"};
                                      }
                                    },
                                    up_to(2)};
  for (const char* id : {"e-1", "e-2", "e-3"}) {
    const auto outcome = consumer(Note{id});
    CHECK(told(outcome) == "applied");
    CHECK(outcome.attempts == 2);
  }
  CHECK(pooled.effects() == "3 of 3");
}

TEST_CASE("a COMMIT whose answer is lost before or behind the pooler is resolved through it",
          "[deployments]") {
  const auto cut =
      GENERATE(Cut::before_server, Cut::inside, Cut::answer_unawaited, Cut::answer, Cut::inside_answer);
  const bool behind = GENERATE(false, true);
  const bool said = GENERATE(false, true);
  CAPTURE(name_of(cut), behind, said);
  Playground place{"pooled_doubt"};
  PostgresStore{server_dsn(), place.options()}.create_schema();
  FaultProxy at_server{server_socket_dir()};
  const std::string at = at_server.dsn().substr(5, at_server.dsn().find(' ') - 5);
  ::chmod(at.c_str(), 0755);  // for the pooler's user
  ::chmod((at + "/.s.PGSQL.5432").c_str(), 0777);
  const PgBouncer pooler{2, at, "5432"};
  FaultProxy at_pooler{pooler.folder()};
  PostgresStore store{at_pooler.dsn(), {.schema = place.schema(), .max_connections = 2}};
  const std::string sql = "INSERT INTO " + place.effects() + " (id) VALUES ($1)";
  const std::function<Outcome<>(const Note&)> deliver = [&](const Note& note) {
    if (said)
      return IdempotentConsumer{"c", store,
                                [&](const Note& n) {
                                  return postgres::Statement{sql, n.id};
                                },
                                up_to(2), without_pauses()}(note);
    return IdempotentConsumer{
        "c", store, [&](postgres::Transaction& tx, const Note& n) { postgres::exec(tx, sql, n.id); },
        up_to(2), without_pauses()}(note);
  };
  REQUIRE(told(deliver({"warm"})) == "applied");
  (behind ? at_server : at_pooler).arm({.cut = cut, .word = "COMMIT", .bytes = 20});
  const auto outcome = deliver({"e"});
  CHECK(at_server.fired() + at_pooler.fired() == 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(told(deliver({"e"})) == "duplicate");
  CHECK(place.effect_ids() == "e,warm");
}

TEST_CASE("a backend that ends while its COMMIT runs leaves a doubt, which is resolved through the pooler",
          "[deployments]") {
  const faults::Ledger ledger;
  faults::SlowCommit commit{ledger};
  const PgBouncer pooler{3, server_socket_dir()};
  PostgresStore store{pooler.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{"pay.v1", store, ledger.book(), without_pauses()};
  std::thread helper{[&] {
    commit.await_commit();
    commit.terminate_commit();
    commit.release();
  }};
  const auto outcome = pay(faults::Payment{"e-1"});
  helper.join();
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(ledger.count("e-1") == 1);
}

TEST_CASE("a statement's name that another client took on the server's session costs a handler nothing",
          "[deployments]") {
  Playground place{"dep_taken"};
  const std::string sql = "INSERT INTO " + place.effects() + " (id) VALUES ($1)";
  // Every connection there will be is one on which the name is taken, as behind a pooler.
  PostgresStore store{[&] {
                        auto connection = std::make_unique<pqxx::connection>(server_dsn());
                        pqxx::nontransaction{*connection}.exec(
                            "PREPARE " + postgres::detail::name_of("effect", sql) + " AS SELECT 1");
                        return connection;
                      },
                      {.schema = place.schema(), .max_connections = 1}};
  store.create_schema();
  const int times = GENERATE(1, 2);
  const bool said = GENERATE(false, true);
  CAPTURE(times, said);
  const auto deliver = [&](const Note& note) {
    if (said)
      return IdempotentConsumer{"c", store, [&](const Note& n) {
                                  return postgres::Statements{std::vector(static_cast<std::size_t>(times),
                                                                          postgres::Statement{sql, n.id})};
                                }}(note);
    return IdempotentConsumer{"c", store, [&](postgres::Transaction& tx, const Note& n) {
                                for (int i = 0; i < times; ++i) postgres::exec(tx, sql, n.id);
                              }}(note);
  };
  for (const char* id : {"a", "b", "c"}) {
    const auto outcome = deliver({id});
    CHECK(told(outcome) == "applied");
    CHECK(outcome.attempts <= 2);
  }
  CHECK(place.effect_ids() == (times == 1 ? "a,b,c" : "a,a,b,b,c,c"));
}

TEST_CASE("row security that binds the owner too keeps two tenants with one id apart, however they work",
          "[deployments]") {
  Playground place{"dep_owner"};
  const Role owner;
  execute("ALTER SCHEMA " + place.schema() + " OWNER TO " + owner.name() + "; ALTER TABLE " +
          place.effects() + " OWNER TO " + owner.name() + "; ALTER TABLE " + place.effects() +
          " ADD tenant text DEFAULT current_setting('app.tenant', true)");
  execute("GRANT CREATE ON DATABASE " + query_value("SELECT current_database()") + " TO " + owner.name());
  PostgresOptions options = place.options();
  options.tenant_setting = "app.tenant";
  PostgresStore store{owner.dsn(), options};
  store.create_schema();
  for (const std::string& table : {place.keys(), place.effects()})
    execute("ALTER TABLE " + table + " ENABLE ROW LEVEL SECURITY; ALTER TABLE " + table +
                " FORCE ROW LEVEL SECURITY; CREATE POLICY own ON " + table +
                " USING (tenant = current_setting('app.tenant'))",
            owner.dsn());
  const auto write = [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); };
  const IdempotentConsumer worker{"work", store, write};
  const IdempotentConsumer saying{
      "say", store, [&](const Note& note) {
        return postgres::Statement{"INSERT INTO " + place.effects() + " (id) VALUES ($1)", note.id};
      }};
  const IdempotentConsumer leasing{"lease", store, [](Lease&, const Note&) {}};
  for (const std::string tenant : {"a", "b"}) {
    CAPTURE(tenant);
    for (const std::int64_t delivery : {1, 2}) {
      const std::string expected = delivery == 1 ? "applied" : "duplicate";
      const Note note{"e", {}, tenant, delivery};
      CHECK(told(worker(note)) == expected);
      CHECK(told(saying(note)) == expected);
      CHECK(told(leasing(note)) == expected);
    }
  }
  const std::vector<Note> both{{"f", {}, "a"}, {"f", {}, "b"}, {"e", {}, "a"}};
  std::string told_of_batch;
  for (const auto& outcome : worker.process_batch(both).outcomes) told_of_batch += told(outcome) + ";";
  CHECK(told_of_batch == "applied;applied;duplicate;");
  CHECK(place.value("SELECT string_agg(tenant || id, ',' ORDER BY tenant, id) FROM " + place.effects()) ==
        "ae,ae,af,be,be,bf");

  // A worker that sets another setting than the policies read.
  const std::string wrong = GENERATE(as<std::string>(), "", "app.customer");
  options.tenant_setting = wrong;
  PostgresStore mistaken{owner.dsn(), options};
  int starts = 0;
  const IdempotentConsumer lost{"work", mistaken, [&](postgres::Transaction&, const Note&) { ++starts; }};
  const IdempotentConsumer lost_lease{"lease", mistaken, [&](Lease&, const Note&) { ++starts; }};
  for (const std::int64_t delivery : {1, 2}) {
    CHECK_FALSE(refusal([&] { return lost(Note{"g", {}, "a", delivery}); }).empty());
    CHECK_FALSE(refusal([&] { return lost_lease(Note{"g", {}, "a", delivery}); }).empty());
    CHECK_FALSE(refusal([&] { return lost(Note{"e", {}, "a", delivery}); }).empty());
  }
  CHECK(starts == 0);
}

TEST_CASE("a worker in LATIN1 and one in UTF8 agree on every key, however they work", "[deployments]") {
  Playground place{"dep_latin1"};
  const Role latin1;
  latin1.set("client_encoding = 'LATIN1'");
  PostgresStore utf8_store{server_dsn(), place.options()};
  utf8_store.create_schema();
  latin1.may_work_in(place);
  execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + place.schema() + " TO " + latin1.name() +
          "; GRANT INSERT ON " + place.effects() + " TO " + latin1.name());
  const bool by_environment = GENERATE(false, true);
  PostgresStore latin1_store{[&] {
                               if (!by_environment) return std::make_unique<pqxx::connection>(latin1.dsn());
                               ::setenv("PGCLIENTENCODING", "LATIN1", 1);
                               auto connection = std::make_unique<pqxx::connection>(server_dsn());
                               ::unsetenv("PGCLIENTENCODING");
                               return connection;
                             },
                             place.options()};
  const std::string e_acute = "caf\xC3\xA9";
  const auto write = [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); };
  const auto say = [&](const Note& note) {
    return postgres::Statement{"INSERT INTO " + place.effects() + " (id) VALUES ($1)", note.id};
  };
  const auto lease = [](Lease&, const Note&) {};
  const Note first{e_acute, e_acute, e_acute};
  const Note again{e_acute, e_acute, e_acute, 2};
  const auto check = [&](PostgresStore& one, PostgresStore& other, const std::string& name) {
    CHECK(told(IdempotentConsumer{name + ".w", one, write}(first)) == "applied");
    CHECK(told(IdempotentConsumer{name + ".w", other, write}(first)) == "duplicate");
    CHECK(told(IdempotentConsumer{name + ".w", other, write}(again)) == "duplicate");
    CHECK(told(IdempotentConsumer{name + ".s", one, say}(first)) == "applied");
    CHECK(told(IdempotentConsumer{name + ".s", other, say}(first)) == "duplicate");
    CHECK(told(IdempotentConsumer{name + ".l", one, lease}(first)) == "applied");
    CHECK(told(IdempotentConsumer{name + ".l", other, lease}(again)) == "duplicate");
    const std::vector<Note> batch{first, again};
    CHECK(IdempotentConsumer{name + ".b", one, write}.process_batch(batch).all_acknowledged());
    CHECK(told(IdempotentConsumer{name + ".b", other, write}(first)) == "duplicate");
  };
  check(latin1_store, utf8_store, "l");
  check(utf8_store, latin1_store, "u");
  CHECK(place.count("keys") == "8");
  CHECK(place.value("SELECT count(*) FROM " + place.effects() +
                    " WHERE encode(convert_to(id, 'UTF8'), 'hex') = '636166c3a9'") == "6");
}

TEST_CASE("a time-out of the role that ends a handler's statement loses nothing", "[deployments]") {
  const std::string setting = GENERATE(as<std::string>(), "lock_timeout", "statement_timeout");
  CAPTURE(setting);
  Playground place{"dep_timeout"};
  const Role role;
  role.set(setting + " = '50ms'");
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  execute("GRANT ALL ON " + place.effects() + " TO " + role.name() + "; INSERT INTO " + place.effects() +
          " VALUES ('row', '0')");
  const std::string update = "UPDATE " + place.effects() + " SET note = (note::int + 1)::text";
  const std::uint32_t attempts = GENERATE(1U, 2U);
  pqxx::connection holder{server_dsn()};
  pqxx::work held{holder};
  held.exec(update);
  PostgresStore store{role.dsn(), place.options()};
  int starts = 0;
  const IdempotentConsumer consumer{"c", store,
                                    [&](postgres::Transaction& tx, const Note&) {
                                      if (++starts == 2) held.commit();
                                      postgres::exec(tx, update);
                                    },
                                    up_to(attempts)};
  const auto outcome = consumer(Note{"e"});
  if (attempts == 1) {
    CHECK(told(outcome) == (setting == "lock_timeout" ? "deferred 55P03" : "deferred 57014"));
    CHECK(outcome.action == Action::redeliver);
    CHECK(place.count("keys") == "0");
    CHECK(told(consumer(Note{"e"})) == "applied");
  } else {
    CHECK(told(outcome) == "applied");
    CHECK(outcome.attempts == 2);
  }
  CHECK(place.value("SELECT note FROM " + place.effects()) == "2");
}

TEST_CASE("a schema in front of search_path captures nothing of ours, though it has our names",
          "[deployments]") {
  Playground place{"dep_path"};
  const Role worker;
  const std::string evil = place.schema() + "_evil";
  PostgresStore{server_dsn(), place.options()}.create_schema();
  worker.may_work_in(place);
  execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA " + place.schema() + " TO " + worker.name() +
          "; GRANT ALL ON " + place.effects() + " TO " + worker.name() + "; CREATE SCHEMA " + evil +
          "; GRANT ALL ON SCHEMA " + evil + " TO PUBLIC");
  // Tables of our names, and functions and operators that fit what we call better than the server's own, or as well.
  execute("CREATE TABLE " + evil + ".keys (a int); CREATE TABLE " + evil + ".outbox (a int); CREATE TABLE " +
          evil + ".attempts (a int); CREATE TABLE " + evil + ".captured (what text); GRANT ALL ON " + evil +
          ".captured TO PUBLIC");
  const auto function = [&](const std::string& signature, const std::string& type, const std::string& value) {
    execute("CREATE FUNCTION " + evil + "." + signature + " RETURNS " + type +
            " LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + evil + ".captured VALUES ('" + signature +
            "'); RETURN " + value + "; END $$");
  };
  function("convert_from(bytea, text)", "text", "'same'");
  function("convert_to(text, text)", "bytea", "'same'");
  function("set_config(text, text, boolean)", "text", "'0'");
  function("current_setting(text, boolean)", "text", "'0'");
  function("clock_timestamp()", "timestamptz", "'epoch'");
  function("pg_current_xact_id()", "xid8", "'5'");
  function("pg_current_xact_id_if_assigned()", "xid8", "'5'");
  function("encode(bytea, text)", "text", "'same'");
  function("decode(text, text)", "bytea", "'same'");
  function("nextval(regclass)", "bigint", "5");
  function("array_remove(uuid[], uuid)", "uuid[]", "NULL");
  function("hashtextextended(text, integer)", "bigint", "5");
  function("pg_advisory_xact_lock(integer)", "text", "5");
  function("equal(text, text)", "boolean", "true");
  function("uuids_contain(uuid[], uuid[])", "boolean", "true");
  function("uuids_join(uuid[], uuid[])", "uuid[]", "NULL");
  function("times(numeric, integer)", "numeric", "5");
  execute("CREATE OPERATOR " + evil + ".= (FUNCTION = " + evil + ".equal, LEFTARG = text, RIGHTARG = text)");
  execute("CREATE OPERATOR " + evil + ".@> (FUNCTION = " + evil +
          ".uuids_contain, LEFTARG = uuid[], RIGHTARG = uuid[])");
  execute("CREATE OPERATOR " + evil + ".|| (FUNCTION = " + evil +
          ".uuids_join, LEFTARG = uuid[], RIGHTARG = uuid[])");
  execute("CREATE OPERATOR " + evil + ".* (FUNCTION = " + evil +
          ".times, LEFTARG = numeric, RIGHTARG = integer)");
  worker.set("search_path = " + evil + ", public");
  PostgresStore store{worker.dsn(), place.options()};
  store.check();
  store.create_schema();
  const auto write = [&](postgres::Transaction& tx, const Note& note) {
    place.write(tx, note.id);
    postgres::enqueue(tx, {.topic = "t", .key = note.id, .payload = "p"});
    return note.id;
  };
  const auto say = [&](const Note& note) {
    return postgres::Statement{"INSERT INTO " + place.effects() + " (id) VALUES ($1)", note.id};
  };
  const ConsumerOptions counting{.attempts = Attempts::counted_by_store};
  for (const std::string id : {"a", "\xC3\xA9", "\xC3\xA8"}) {
    CAPTURE(id);
    for (const std::int64_t delivery : {1, 1, 2}) {
      const Note note{id, {}, id, delivery};
      const bool known = place.count("keys WHERE consumer = 'l' AND event_id = '" + id + "'") != "0";
      const std::string expected = known ? "duplicate" : "applied";
      CHECK(told(IdempotentConsumer{"w", store, write}(note)) == expected);
      CHECK(told(IdempotentConsumer{"s", store, say}(note)) == expected);
      CHECK(told(IdempotentConsumer{"l", store, [](Lease&, const Note&) {}, counting}(note)) == expected);
      CHECK(IdempotentConsumer{"b", store, write}.process_batch(std::vector{note}).all_acknowledged());
    }
    pqxx::connection connection{worker.dsn()};
    pqxx::work tx{connection};
    CHECK(postgres::claim(tx, Key{id, "p", id}, Fingerprint{}, place.schema()) == postgres::Claimed::fresh);
    CHECK(postgres::claim(tx, Key{id, "p", id}, Fingerprint{}, place.schema()) ==
          postgres::Claimed::duplicate);
    tx.commit();
  }
  CHECK(place.count("keys") == "15");
  CHECK(place.value("SELECT coalesce(string_agg(DISTINCT what, '; '), '') FROM " + evil + ".captured") == "");
  execute("DROP SCHEMA " + evil + " CASCADE");
}

TEST_CASE("handlers that read, compute and write lose no update where the isolation level forbids it",
          "[deployments]") {
  const auto level = GENERATE(Isolation::repeatable_read, Isolation::serializable);
  CAPTURE(static_cast<int>(level));
  Playground place{"dep_serial"};
  PostgresOptions options = place.options();
  options.isolation = level;
  PostgresStore store{server_dsn(), options};
  store.create_schema();
  execute("INSERT INTO " + place.effects() + " VALUES ('sum', '0')");
  const auto add = [&](postgres::Transaction& tx, const Note&) {
    const auto read = postgres::exec(tx, "SELECT note::int FROM " + place.effects() + " WHERE id = 'sum'");
    postgres::exec(tx, "UPDATE " + place.effects() + " SET note = $1 WHERE id = 'sum'",
                   read[0][0].as<int>() + 1);
  };
  const IdempotentConsumer consumer{"c", store, add, up_to(3)};
  std::atomic<int> applied = 0;
  std::atomic<int> rejected = 0;
  CHECK(on_threads(4, [&](int thread) {
          for (int event = 0; event < 15; ++event) {
            Outcome<> outcome;
            do outcome = consumer(Note{std::to_string(thread) + "-" + std::to_string(event)});
            while (outcome.status == Status::deferred);
            ++(outcome.status == Status::applied ? applied : rejected);
          }
        }).empty());
  CHECK(applied == 60);
  CHECK(rejected == 0);
  CHECK(place.value("SELECT note FROM " + place.effects()) == "60");
}

}  // namespace idem::tests::deployed
