// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/session.hpp>

#include <functional>
#include <string>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;

namespace {

/// Counts what a consumer tells of.
struct Counts {
  int failed = 0;
  int retried = 0;
  void observe(const Observation& seen) {
    if (seen.what == Observed::attempt_failed) ++failed;
    if (seen.what == Observed::retrying) ++retried;
  }
};

void swallow(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

const std::string e_acute = "caf\xC3\xA9";

}  // namespace

TEST_CASE("a connection lost inside the handler is retried on a new one, as the policy says") {
  Playground place{"se_killed"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  const int reaction = GENERATE(0, 1, 2, 3);
  CAPTURE(reaction);
  std::vector<int> pids;
  Counts counts;
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                pids.push_back(pid_of(tx));
                                place.write(tx, note.id);
                                if (pids.size() > 1) return;
                                terminate(pids.front());
                                if (reaction == 0) place.write(tx, "lost");
                                if (reaction == 1) tx.exec(std::string{"SELECT 1"});
                                if (reaction == 2) swallow([&] { place.write(tx, "lost"); });
                                if (reaction == 2) throw TransientError{"something"};
                                if (reaction == 3) throw 42;
                              },
                              up_to(2), counts};
  const auto outcome = consumer(Note{"e"});
  CHECK(told(outcome) == "applied");
  CHECK(outcome.attempts == 2);
  CHECK(counts.retried == 1);
  REQUIRE(pids.size() == 2);
  CHECK(pids[0] != pids[1]);
  CHECK(place.effect_ids() == "e");
}

TEST_CASE("a connection lost inside the handler is never the message's fault") {
  Playground place{"se_never"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  const bool parameterised = GENERATE(true, false);
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note&) {
                                terminate(pid_of(tx));
                                if (parameterised)
                                  place.write(tx, "lost");
                                else
                                  tx.exec(std::string{"SELECT 1"});
                              },
                              up_to(2), Redeliver{Immediate{} | MaxAttempts{3}}};
  Note note{"e"};
  note.delivery_count = 1000;
  const auto outcome = consumer(note);
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.attempts == 2);
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::reconnect);
  CHECK(place.effect_ids().empty());
  CHECK(place.count("keys") == "0");
}

TEST_CASE("a handler that hides the loss of its connection is not applied, and starts again at once") {
  Playground place{"se_hidden"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  const bool touches = GENERATE(true, false);
  int starts = 0;
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                if (++starts > 1) return;
                                terminate(pid_of(tx));
                                if (touches) swallow([&] { place.write(tx, "lost"); });
                              }};
  const auto outcome = consumer(Note{"e"});
  CAPTURE(told(outcome));
  CHECK((outcome.status == Status::applied || outcome.status == Status::deferred));
  if (outcome.status == Status::applied) CHECK(place.effect_ids() == "e");
  if (outcome.status == Status::deferred) CHECK(place.effect_ids().empty());
  CHECK(place.count("keys") == place.count("effects"));
}

TEST_CASE("a session that the server ends for idling in a transaction counts as a lost connection") {
  Playground place{"se_idle"};
  PostgresStore{server_dsn(), place.options()}.create_schema();
  PostgresStore store{"options='-c idle_in_transaction_session_timeout=20ms'", place.options()};
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note&) {
                                const int pid = pid_of(tx);
                                await("the server's patience to end", [&] {
                                  return query_value("SELECT count(*) FROM pg_stat_activity WHERE pid = " +
                                                     std::to_string(pid)) == "0";
                                });
                                place.write(tx, "lost");
                              },
                              up_to(2)};
  const auto outcome = consumer(Note{"e"});
  CHECK(outcome.status == Status::deferred);
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::reconnect);
  CHECK(outcome.attempts == 2);
}

TEST_CASE("a pooled connection that died while idle is replaced, uncounted") {
  Playground place{"se_dead"};
  PostgresOptions options = place.options();
  options.max_connections = 2;
  PostgresStore store{server_dsn(), options};
  store.create_schema();
  int pid = 0;
  Counts counts;
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                pid = pid_of(tx);
                                place.write(tx, note.id);
                              },
                              counts};
  CHECK(told(consumer(Note{"a"})) == "applied");
  const int first = pid;
  terminate(first);
  const bool fresh = GENERATE(true, false);
  if (fresh) {
    const auto outcome = consumer(Note{"b"});
    CHECK(told(outcome) == "applied");
    CHECK(outcome.attempts == 1);
    CHECK(pid != first);
  } else {
    const auto outcome = consumer(Note{"a"});
    CHECK(told(outcome) == "duplicate");
    CHECK(outcome.attempts == 0);
  }
  CHECK(counts.failed == 0);
  CHECK(counts.retried == 0);
}

TEST_CASE("all pooled connections dead at once cost no message an attempt") {
  Playground place{"se_all_dead"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  std::vector<int> pids;
  Counts counts;
  IdempotentConsumer inner{
      "i", store, [&](postgres::Transaction& tx, const Note&) { pids.push_back(pid_of(tx)); }, counts};
  IdempotentConsumer outer{"o", store,
                           [&](postgres::Transaction& tx, const Note& note) {
                             pids.push_back(pid_of(tx));
                             CHECK(told(inner(note)) == "applied");
                           },
                           counts};
  CHECK(told(outer(Note{"a"})) == "applied");
  REQUIRE(pids.size() == 2);
  for (const int pid : pids) terminate(pid);
  CHECK(told(inner(Note{"b"})) == "applied");
  CHECK(told(inner(Note{"c"})) == "applied");
  CHECK(counts.failed == 0);
}

TEST_CASE("the handler's locks wait as long as the role says") {
  Playground place{"se_lock"};
  const Role role;
  const std::string own = GENERATE(as<std::string>(), "0", "7s", "1234ms", "2min");
  role.set("lock_timeout = '" + own + "'");
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  PostgresStore store{role.dsn(), place.options()};
  IdempotentConsumer consumer{"c", store, [](postgres::Transaction& tx, const Note&) {
                                return std::string{tx.exec(std::string{"SHOW lock_timeout"})[0][0].c_str()};
                              }};
  CHECK(consumer(Note{"e"}).value == own);
  CHECK(consumer(Note{"f"}).value == own);
}

TEST_CASE("a client encoding set for the role changes no key") {
  Playground place{"se_latin1"};
  const Role latin1;
  latin1.set("client_encoding = 'LATIN1'");
  PostgresStore utf8_store{server_dsn(), place.options()};
  utf8_store.create_schema();
  latin1.may_work_in(place);
  PostgresStore latin1_store{latin1.dsn(), place.options()};
  PostgresStore startup_store{"client_encoding=LATIN1", place.options()};
  const auto deliver = [&](PostgresStore& store, const std::string& id) {
    IdempotentConsumer consumer{"c", store, [](postgres::Transaction&, const Note&) {}};
    return told(consumer(Note{id}));
  };
  CHECK(deliver(latin1_store, e_acute) == "applied");
  CHECK(deliver(utf8_store, e_acute) == "duplicate");
  CHECK(deliver(startup_store, e_acute) == "duplicate");
  CHECK(deliver(utf8_store, "\xE2\x82\xAC") == "applied");
  CHECK(deliver(latin1_store, "\xE2\x82\xAC") == "duplicate");
}

TEST_CASE("a handler that changes its session does not change the keys of the messages after it") {
  Playground place{"se_session"};
  const Role role;
  role.set("client_encoding = 'LATIN1'");
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  PostgresStore store{role.dsn(), place.options()};
  const std::string change = GENERATE(
      as<std::string>(), "SET standard_conforming_strings = off", "SET client_encoding = 'LATIN1'",
      "RESET ALL", "SET bytea_output = 'escape'", "SET lock_timeout = '1ms'",
      "SET escape_string_warning = on", "SET DateStyle = 'SQL, DMY'", "SET quote_all_identifiers = on",
      "SET default_transaction_isolation = 'serializable'", "SET search_path = ''");
  CAPTURE(change);
  for (const std::string id : {"plain", e_acute.c_str(), "back\\slash'"}) {
    CAPTURE(id);
    int starts = 0;
    // Two results and not one: the value is stored by the message that commits, in the session as the handler left it.
    IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note&) {
                                  ++starts;
                                  tx.exec(change);
                                  return std::string{"\x01\xFF"} + e_acute;
                                }};
    CHECK(told(consumer(Note{id})) == "applied");
    std::string again;
    CHECK_NOTHROW(again = told(consumer(Note{id})));
    CHECK(again == "duplicate");
    CHECK(starts == 1);
    PostgresStore other{server_dsn(), place.options()};
    IdempotentConsumer elsewhere{"c", other, [&](postgres::Transaction&, const Note&) {
                                   ++starts;
                                   return std::string{};
                                 }};
    const auto seen = elsewhere(Note{id});
    CHECK(told(seen) == "duplicate");
    CHECK(seen.value == std::string{"\x01\xFF"} + e_acute);
  }
}

TEST_CASE("a bytea format set for the role changes neither fingerprints nor values") {
  Playground place{"se_bytea"};
  const Role role;
  role.set("bytea_output = 'escape'");
  PostgresStore{server_dsn(), place.options()}.create_schema();
  role.may_work_in(place);
  PostgresStore store{role.dsn(), place.options()};
  IdempotentConsumer consumer{"c", store,
                              [](postgres::Transaction&, const Note&) { return std::string{"v\x01\xFF"}; }};
  CHECK(told(consumer(Note{"e"})) == "applied");
  std::string again;
  std::string value;
  CHECK_NOTHROW([&] {
    const auto outcome = consumer(Note{"e"});
    again = told(outcome);
    value = outcome.value.value_or("");
  }());
  CHECK(again == "duplicate");
  CHECK(value == "v\x01\xFF");
}

TEST_CASE("standard_conforming_strings off for the role changes nothing") {
  Playground place{"se_scs"};
  const Role role;
  role.set("standard_conforming_strings = off").set("backslash_quote = off");
  PostgresStore utf8_store{server_dsn(), place.options()};
  utf8_store.create_schema();
  role.may_work_in(place);
  PostgresStore store{role.dsn(), place.options()};
  for (const std::string id : {"a\\'b", "\\", "\\\\", "'\\'", "\\x41", "'"}) {
    CAPTURE(id);
    IdempotentConsumer consumer{"c", store, [](postgres::Transaction&, const Note&) {}};
    CHECK(told(consumer(Note{id})) == "applied");
    IdempotentConsumer elsewhere{"c", utf8_store, [](postgres::Transaction&, const Note&) {}};
    CHECK(told(elsewhere(Note{id})) == "duplicate");
  }
}
