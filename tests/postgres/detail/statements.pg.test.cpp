// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/statements.hpp>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;
using namespace std::chrono_literals;

namespace {

std::string session_with(const std::string& setting) { return "options='-c " + setting + "'"; }

/// Holds the key of ('', 'c', 'e') in a transaction of its own, as another process would.
class Holder {
 public:
  explicit Holder(const Playground& place) {
    tx_.exec("INSERT INTO " + place.keys() +
             " (tenant, consumer, event_id, claim_token) VALUES ('', 'c', 'e', gen_random_uuid())");
    pid_ = pid_of(tx_);
  }
  [[nodiscard]] int pid() const noexcept { return pid_; }
  void commit() { tx_.commit(); }
  void abort() { tx_.abort(); }

 private:
  pqxx::connection connection_{server_dsn()};
  pqxx::work tx_{connection_};
  int pid_ = 0;
};

/// The name under which the store's statement is prepared.
std::string prepared_name(const PostgresOptions& options, const std::string& what) {
  const std::string sql = postgres::detail::Statements{options}.prepare();
  const auto at = sql.find("idem_" + what + "_");
  return sql.substr(at, sql.find(' ', at) - at);
}

/// Delivers 'e' while another holds its key, and lets go once we wait.
template <class Release>
std::string deliver_behind_a_holder(const std::string& dsn, const Playground& place, ConsumerOptions options,
                                    Release release, Isolation isolation = Isolation::read_committed) {
  PostgresOptions store_options = place.options();
  store_options.isolation = isolation;
  PostgresStore store{dsn, store_options};
  store.create_schema();
  Holder holder{place};
  IdempotentConsumer consumer{
      "c", store, [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); }, options};
  auto answer = std::async(std::launch::async, [&] { return told(consumer(Note{"e"})); });
  try {
    await("a waiter, or an answer", [&] {
      return answer.wait_for(0s) == std::future_status::ready ||
             query_value("SELECT count(*) FROM pg_stat_activity WHERE " + std::to_string(holder.pid()) +
                         " = ANY(pg_blocking_pids(pid))") != "0";
    });
  } catch (const std::exception& e) {
    UNSCOPED_INFO(e.what());
  }
  release(holder);
  return answer.get();
}

}  // namespace

TEST_CASE("a claim waits for another holder, and answers as that one ends") {
  const auto level = GENERATE(Isolation::read_committed, Isolation::repeatable_read, Isolation::serializable);
  const std::string session =
      GENERATE(as<std::string>(), "read committed", "repeatable read", "serializable");
  Playground place{"sm_wait"};
  const Role role{"LOGIN SUPERUSER"};
  const std::string dsn = role.set("default_transaction_isolation = '" + session + "'").dsn();
  CAPTURE(session, static_cast<int>(level));
  const auto commit = [](Holder& holder) { holder.commit(); };
  const auto abort = [](Holder& holder) { holder.abort(); };
  CHECK(deliver_behind_a_holder(dsn, place, {}, abort, level) == "applied");
  CHECK(place.effect_ids() == "e");
  execute("DELETE FROM " + place.keys() + "; DELETE FROM " + place.effects());
  CHECK(deliver_behind_a_holder(dsn, place, {}, commit, level) == "duplicate");
  CHECK(place.effect_ids().empty());
}

TEST_CASE("a wait without a limit waits") {
  Playground place{"sm_for_ever"};
  const auto limit = GENERATE(Duration{1h}, Duration{24h * 365}, Duration::max());
  CAPTURE(limit.count());
  CHECK(deliver_behind_a_holder(server_dsn(), place, {.wait_limit = limit},
                                [](Holder& holder) { holder.abort(); }) == "applied");
}

TEST_CASE("a wait ends with wait_limit, with the session's statement_timeout, or before it began") {
  Playground place{"sm_limit"};
  const auto nothing = [](Holder&) {};
  CHECK(deliver_behind_a_holder(server_dsn(), place, {.wait_limit = 30ms}, nothing) == "in_progress 55P03");
  CHECK(deliver_behind_a_holder(server_dsn(), place, {.on_concurrent = Concurrent::defer, .wait_limit = 1h},
                                nothing) == "in_progress 55P03");
  CHECK(deliver_behind_a_holder(session_with("statement_timeout=30ms"), place, {.wait_limit = 1h}, nothing) ==
        "in_progress 55P03");
  // The role's own shorter lock_timeout does not shorten the wait.
  CHECK(deliver_behind_a_holder(session_with("lock_timeout=1ms"), place, {.wait_limit = 1h},
                                [](Holder& holder) { holder.abort(); }) == "applied");
}

TEST_CASE(
    "of many that claim one event, in several processes and at any default isolation level, one applies") {
  const std::string level = GENERATE(as<std::string>(), "read committed", "repeatable read", "serializable");
  const auto isolation =
      GENERATE(Isolation::read_committed, Isolation::repeatable_read, Isolation::serializable);
  Playground place{"sm_many"};
  const Role role;
  role.set("default_transaction_isolation = '" + level + "'");
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  PostgresOptions options = place.options();
  options.isolation = isolation;
  std::vector<std::unique_ptr<PostgresStore>> stores;
  for (int i = 0; i < 4; ++i) stores.push_back(std::make_unique<PostgresStore>(role.dsn(), options));
  std::vector<std::future<std::string>> answers;
  for (auto& store : stores)
    for (int i = 0; i < 2; ++i)
      answers.push_back(std::async(std::launch::async, [&] {
        IdempotentConsumer consumer{
            "c", *store, [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); },
            up_to(10)};
        std::string all;
        for (int event = 0; event < 5; ++event) all += told(consumer(Note{std::to_string(event)})) + ";";
        return all;
      }));
  int applied = 0;
  int duplicates = 0;
  for (auto& future : answers) {
    const std::string all = future.get();
    CAPTURE(all);
    for (std::size_t at = 0; (at = all.find("applied;", at)) != std::string::npos; ++at) ++applied;
    for (std::size_t at = 0; (at = all.find("duplicate;", at)) != std::string::npos; ++at) ++duplicates;
  }
  CHECK(applied == 5);
  CHECK(duplicates == 35);
  CHECK(place.effect_ids() == "0,1,2,3,4");
}

TEST_CASE("a write skew between serializable handlers is found, and the loser starts again") {
  Playground place{"sm_skew"};
  PostgresOptions options = place.options();
  options.isolation = Isolation::serializable;
  PostgresStore store{server_dsn(), options};
  store.create_schema();
  const auto read_and_write = [&](postgres::Transaction& tx, const Note& note) {
    const auto seen = tx.exec("SELECT count(*) FROM " + place.effects())[0][0].as<std::string>();
    postgres::exec(tx, "INSERT INTO " + place.effects() + " VALUES ($1, $2)", note.id, seen);
  };
  IdempotentConsumer other{"c", store, read_and_write};
  int starts = 0;
  const auto attempts = GENERATE(1U, 3U);
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                static_cast<void>(tx.exec("SELECT count(*) FROM " + place.effects()));
                                if (++starts == 1) CHECK(told(other(Note{"other"})) == "applied");
                                read_and_write(tx, note);
                              },
                              up_to(attempts)};
  const auto outcome = consumer(Note{"e"});
  if (attempts == 1) {
    CHECK(told(outcome) == "deferred 40001");
    CHECK(place.effect_ids() == "other");
    return;
  }
  CHECK(told(outcome) == "applied");
  CHECK(outcome.attempts == 2);
  CHECK(place.value("SELECT string_agg(id || '=' || note, ',' ORDER BY note) FROM " + place.effects()) ==
        "other=0,e=1");
}

TEST_CASE("the isolation level of a handler is the store's, whatever the session's default") {
  Playground place{"sm_level"};
  PostgresOptions options = place.options();
  const auto [level, name] =
      GENERATE(table<Isolation, std::string>({{Isolation::read_committed, "read committed"},
                                              {Isolation::repeatable_read, "repeatable read"},
                                              {Isolation::serializable, "serializable"}}));
  options.isolation = level;
  PostgresStore store{session_with("default_transaction_isolation=" + std::string{"serializable"}), options};
  store.create_schema();
  IdempotentConsumer consumer{
      "c", store, [](postgres::Transaction& tx, const Note&) {
        return std::string{tx.exec(std::string{"SHOW transaction_isolation"})[0][0].c_str()};
      }};
  CHECK(consumer(Note{"e"}).value == name);
}

TEST_CASE("a cold duplicate writes nothing: no row, no WAL, no transaction id") {
  Playground place{"sm_cold"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); }};
  CHECK(told(consumer(Note{"e"})) == "applied");
  CHECK(told(consumer(Note{"e"})) == "duplicate");  // sets hint bits
  pqxx::connection connection{server_dsn()};
  pqxx::nontransaction watch{connection};
  const auto look = [&] {
    const auto row = watch.exec(
        std::string{"SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())"});
    return std::array{std::string{row[0][0].c_str()}, std::string{row[0][1].c_str()}};
  };
  // Others write to the server as well; a duplicate that wrote would leave no round untouched.
  int rounds = 0;
  bool untouched = false;
  while (!untouched && ++rounds <= 500) {
    const auto before = look();
    const auto outcome = consumer(Note{"e"});
    untouched = told(outcome) == "duplicate" && look() == before;
  }
  CHECK(untouched);
  // And the way it is measured sees a write.
  const auto before = look();
  CHECK(told(consumer(Note{"f"})) == "applied");
  CHECK(look() != before);
  CHECK(place.count("keys") == "2");
}

TEST_CASE("a handler that drops the prepared statements is never rejected for it, and later messages go on") {
  Playground place{"sm_deallocate"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  const std::string what = GENERATE(as<std::string>(), "ALL", "claim", "guard");
  const std::string name = what == "ALL" ? what : prepared_name(place.options(), what);
  const int then = GENERATE(0, 1, 2);
  CAPTURE(what, then);
  int starts = 0;
  IdempotentConsumer dropping{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                ++starts;
                                place.write(tx, note.id);
                                if (starts == 1) tx.exec("DEALLOCATE " + name);
                                if (then == 1 && starts == 1) throw TransientError{"later"};
                                if (then == 2 && starts == 1)
                                  tx.exec(std::string{"SELECT 1 FROM nowhere.nothing"});
                              },
                              up_to(2)};
  const auto first = dropping(Note{"e"});
  CHECK(told(first) == (then == 2 ? "deferred 42P01" : "applied"));
  CHECK(told(dropping(Note{"e"})) == (then == 2 ? "applied" : "duplicate"));
  CHECK(told(dropping(Note{"f"})) == "applied");
  CHECK(place.effect_ids() == "e,f");
}

TEST_CASE("a handler that drops the prepared statements and may start once is not rejected") {
  Playground place{"sm_deallocate_once"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  int starts = 0;
  IdempotentConsumer dropping{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                if (++starts == 1) tx.exec(std::string{"DEALLOCATE ALL"});
                              }};
  const auto first = dropping(Note{"e"});
  CHECK(first.status != Status::rejected);
  CHECK(place.count("keys") == place.count("effects"));
  const auto second = dropping(Note{"e"});
  CHECK((second.status == Status::applied || second.status == Status::duplicate));
  CHECK(place.effect_ids() == "e");
}

TEST_CASE("a prepared statement that another dropped, or whose name is taken, costs no visible error") {
  Playground place{"sm_names"};
  const std::string what = GENERATE(as<std::string>(), "claim", "guard");
  const std::string name = prepared_name(place.options(), what);
  const bool taken = GENERATE(true, false);
  CAPTURE(what, taken);
  pqxx::connection* last = nullptr;
  PostgresStore store{[&] {
                        auto connection = std::make_unique<pqxx::connection>(server_dsn());
                        last = connection.get();
                        if (taken) pqxx::nontransaction{*connection}.exec("PREPARE " + name + " AS SELECT 1");
                        return connection;
                      },
                      place.options()};
  store.create_schema();
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                return note.id;
                              }};
  const auto first = consumer(Note{"e"});
  CHECK(told(first) == "applied");
  CHECK(first.attempts == 1);
  if (!taken) pqxx::nontransaction{*last}.exec(std::string{"DEALLOCATE ALL"});
  const auto second = consumer(Note{"f"});
  CHECK(told(second) == "applied");
  CHECK(second.attempts == 1);
  if (!taken) pqxx::nontransaction{*last}.exec(std::string{"DEALLOCATE ALL"});
  const auto again = consumer(Note{"e"});
  CHECK(told(again) == "duplicate");
  CHECK(again.value == "e");
  CHECK(place.effect_ids() == "e,f");
}

TEST_CASE("two stores with different schemas may share a session's names") {
  Playground a{"sm_a"};
  Playground b{"sm_b"};
  CHECK(prepared_name(a.options(), "claim") != prepared_name(b.options(), "claim"));
}
