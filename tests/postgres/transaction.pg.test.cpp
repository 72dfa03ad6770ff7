// SPDX-License-Identifier: MIT
#include <idem/postgres/transaction.hpp>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;

namespace {

using Handler = std::function<void(postgres::Transaction&, const Note&)>;

/// A store with its schema, and one consumer of notes after another.
class Shop {
 public:
  explicit Shop(const std::string& prefix) : place{prefix}, store{server_dsn(), place.options()} {
    store.create_schema();
  }

  auto deliver(const std::string& id, const Handler& handler, std::uint32_t attempts = 1) {
    IdempotentConsumer consumer{"c", store, handler, up_to(attempts)};
    return consumer(Note{id});
  }

  [[nodiscard]] std::string effects() const { return place.effect_ids(); }
  [[nodiscard]] std::string keys() const {
    return place.value("SELECT coalesce(string_agg(event_id, ',' ORDER BY event_id), '') FROM " +
                       place.keys());
  }

  Playground place;
  PostgresStore store;
};

template <class Work>
void swallow(Work work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

constexpr auto bad_sql = "SELECT 1/0";
constexpr auto bad_parameterised = "SELECT 1/$1::int";

template <class R>
void check_ended(const Outcome<R>& outcome) {
  CHECK(told(outcome) == "rejected transaction_ended_by_handler");
  CHECK(outcome.action == Action::dead_letter);
  CHECK(outcome.attempts == 1);
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::permanent);
}

/// What a handler may do wrong after it ended the transaction.
struct Ending {
  std::string name;
  Handler then;
};

std::vector<Ending> endings() {
  return {
      {"returns", [](postgres::Transaction&, const Note&) {}},
      {"throws TransientError", [](postgres::Transaction&, const Note&) { throw TransientError{"later"}; }},
      {"throws PermanentError", [](postgres::Transaction&, const Note&) { throw PermanentError{"never"}; }},
      {"throws something unknown", [](postgres::Transaction&, const Note&) { throw 42; }},
      {"lets an SQL error out",
       [](postgres::Transaction& tx, const Note&) { tx.exec(std::string{bad_sql}); }},
      {"lets a parameterised SQL error out",
       [](postgres::Transaction& tx, const Note&) { postgres::exec(tx, bad_parameterised, 0); }},
      {"swallows an SQL error",
       [](postgres::Transaction& tx, const Note&) { swallow([&] { tx.exec(std::string{bad_sql}); }); }},
      {"swallows a parameterised SQL error",
       [](postgres::Transaction& tx, const Note&) {
         swallow([&] { postgres::exec(tx, bad_parameterised, 0); });
       }},
  };
}

}  // namespace

TEST_CASE("a handler that swallows an SQL error is never applied, and nothing of it is stored") {
  Shop shop{"tx_swallow"};
  const bool parameterised = GENERATE(false, true);
  const bool goes_on = GENERATE(false, true);
  const bool goes_on_with_parameters = GENERATE(false, true);
  CAPTURE(parameterised, goes_on, goes_on_with_parameters);
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note& note) {
    shop.place.write(tx, note.id);
    swallow([&] {
      if (parameterised)
        postgres::exec(tx, bad_parameterised, 0);
      else
        tx.exec(std::string{bad_sql});
    });
    if (!goes_on) return;
    swallow([&] {
      if (goes_on_with_parameters)
        shop.place.write(tx, "later");
      else
        tx.exec("INSERT INTO " + shop.place.effects() + " VALUES ('later')");
    });
  });
  CHECK(told(outcome) == "deferred 25P02");
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::transient);
  CHECK(outcome.failure->message.find("went on after an SQL error") != std::string::npos);
  CHECK(shop.effects().empty());
  CHECK(shop.keys().empty());
  CHECK(told(shop.deliver("e", [&](postgres::Transaction& tx, const Note& n) {
          shop.place.write(tx, n.id);
        })) == "applied");
}

TEST_CASE("an error that hides an earlier one is classed as the earlier one") {
  Shop shop{"tx_first"};
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note&) {
    swallow([&] { postgres::exec(tx, bad_parameterised, 0); });
    shop.place.write(tx, "later");
  });
  CHECK(told(outcome) == "rejected 22012");
}

TEST_CASE("an error that was rolled back to a savepoint does not class a later one") {
  Shop shop{"tx_stale"};
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note&) {
    postgres::exec(tx, "SAVEPOINT before");
    swallow([&] { postgres::exec(tx, bad_parameterised, 0); });
    postgres::exec(tx, "ROLLBACK TO before");
    shop.place.write(tx, "fine");
    swallow([&] { tx.exec("DO $do$ BEGIN RAISE SQLSTATE '40001'; END $do$"); });
    shop.place.write(tx, "later");
  });
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::transient);
  CHECK(outcome.status == Status::deferred);
}

TEST_CASE("a handler may fail within a subtransaction and go on") {
  Shop shop{"tx_sub"};
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note& note) {
    shop.place.write(tx, note.id);
    swallow([&] {
      pqxx::subtransaction attempt{tx};
      shop.place.write(attempt, "undone");
      postgres::exec(attempt, bad_parameterised, 0);
    });
    pqxx::subtransaction kept{tx};
    shop.place.write(kept, "kept");
    kept.commit();
  });
  CHECK(told(outcome) == "applied");
  CHECK(shop.effects() == "e,kept");
}

TEST_CASE(
    "what a handler wrote before its own ROLLBACK is gone, what it wrote after it stays, and it is rejected") {
  Shop shop{"tx_rollback"};
  for (const auto& ending : endings()) {
    DYNAMIC_SECTION("it " << ending.name) {
      check_ended(shop.deliver(
          "e",
          [&](postgres::Transaction& tx, const Note& note) {
            shop.place.write(tx, "before");
            tx.exec(std::string{"ROLLBACK"});
            shop.place.write(tx, "after");
            ending.then(tx, note);
          },
          3));
      CHECK(shop.effects() == "after");
      CHECK(shop.keys().empty());
    }
  }
}

TEST_CASE("what a handler committed itself stays, the next delivery is a duplicate, and it is rejected") {
  Shop shop{"tx_commit"};
  for (const auto& ending : endings()) {
    DYNAMIC_SECTION("it " << ending.name) {
      check_ended(shop.deliver(
          "e",
          [&](postgres::Transaction& tx, const Note& note) {
            shop.place.write(tx, "before");
            tx.exec(std::string{"COMMIT"});
            ending.then(tx, note);
          },
          3));
      CHECK(shop.effects() == "before");
      CHECK(shop.keys() == "e");
      CHECK(told(shop.deliver("e", [](postgres::Transaction&, const Note&) { FAIL("started again"); })) ==
            "duplicate");
    }
  }
}

TEST_CASE("a handler that commits and begins again is rejected, and what it wrote since is rolled back") {
  Shop shop{"tx_commit_begin"};
  const std::string statement = GENERATE(as<std::string>(), "COMMIT; BEGIN", "COMMIT AND CHAIN");
  for (const auto& ending : endings()) {
    DYNAMIC_SECTION(statement << ", and it " << ending.name) {
      check_ended(shop.deliver(
          "e",
          [&](postgres::Transaction& tx, const Note& note) {
            shop.place.write(tx, "before");
            tx.exec(statement);
            shop.place.write(tx, "after");
            ending.then(tx, note);
          },
          3));
      CHECK(shop.effects() == "before");
      CHECK(shop.keys() == "e");
    }
  }
}

TEST_CASE("a handler that rolls back and begins again is rejected, and nothing of it is stored") {
  Shop shop{"tx_rollback_begin"};
  const std::string statement =
      GENERATE(as<std::string>(), "ROLLBACK; BEGIN", "ROLLBACK; BEGIN ISOLATION LEVEL SERIALIZABLE",
               "ROLLBACK AND CHAIN");
  const bool writes = GENERATE(true, false);
  for (const auto& ending : endings()) {
    DYNAMIC_SECTION(statement << ", " << (writes ? "writes" : "writes nothing") << ", and it "
                              << ending.name) {
      const auto outcome = shop.deliver(
          "e",
          [&](postgres::Transaction& tx, const Note& note) {
            shop.place.write(tx, "before");
            tx.exec(statement);
            if (writes) shop.place.write(tx, "after");
            ending.then(tx, note);
          },
          3);
      // A failed transaction answers no question, and a second one of the handler's making looks like ours. It is
      // handled as a failure of the handler: what matters holds all the same.
      if (ending.name.find("SQL error") != std::string::npos)
        CHECK((outcome.status == Status::rejected || outcome.status == Status::deferred));
      else
        check_ended(outcome);
      CHECK(shop.effects().empty());
      CHECK(shop.keys().empty());
    }
  }
}

TEST_CASE("a handler that writes outside of a transaction, begins again and fails is never applied") {
  Shop shop{"tx_stray"};
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note&) {
    tx.exec(std::string{"ROLLBACK"});
    shop.place.write(tx, "stray");
    tx.exec(std::string{"BEGIN"});
    tx.exec("DO $do$ BEGIN RAISE SQLSTATE '40001'; END $do$");
  });
  CHECK(outcome.action != Action::acknowledge);
  CHECK(shop.effects() == "stray");
  CHECK(shop.keys().empty());
}

TEST_CASE("commit() and abort() through the base class reach the server in no way") {
  Shop shop{"tx_base"};
  const auto call = GENERATE(0, 1, 2, 3);
  const bool swallows = GENERATE(false, true);
  const auto end = [&](postgres::Transaction& tx) {
    auto& db = static_cast<pqxx::dbtransaction&>(tx);
    auto& base = static_cast<pqxx::transaction_base&>(tx);
    if (call == 0) db.commit();
    if (call == 1) base.commit();
    if (call == 2) db.abort();
    if (call == 3) base.abort();
  };
  for (const auto& ending : endings()) {
    DYNAMIC_SECTION("call " << call << (swallows ? ", swallowed" : "") << ", and it " << ending.name) {
      check_ended(shop.deliver(
          "e",
          [&](postgres::Transaction& tx, const Note& note) {
            shop.place.write(tx, "before");
            if (swallows)
              swallow([&] { end(tx); });
            else
              end(tx);
            swallow([&] { shop.place.write(tx, "after"); });
            swallow([&] { tx.exec("INSERT INTO " + shop.place.effects() + " VALUES ('plain')"); });
            ending.then(tx, note);
          },
          3));
      CHECK(shop.effects().empty());
      CHECK(shop.keys().empty());
    }
  }
}

TEST_CASE("the session of a handler that ended its transaction is not used again") {
  Shop shop{"tx_session"};
  int pid = 0;
  check_ended(shop.deliver("e", [&](postgres::Transaction& tx, const Note&) {
    pid = pid_of(tx);
    tx.exec(std::string{"COMMIT; BEGIN"});
  }));
  const auto outcome = shop.deliver("f", [&](postgres::Transaction& tx, const Note& note) {
    CHECK(pid_of(tx) != pid);
    shop.place.write(tx, note.id);
  });
  CHECK(told(outcome) == "applied");
  CHECK(shop.effects() == "f");
}

TEST_CASE("a handler that prepares the transaction for two phases is rejected") {
  Shop shop{"tx_two_phase"};
  const bool possible = query_value("SHOW max_prepared_transactions") != "0";
  const std::string name = shop.place.schema();
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note& note) {
    shop.place.write(tx, note.id);
    tx.exec("PREPARE TRANSACTION '" + name + "'");
  });
  check_ended(
      outcome);  // refused as well (max_prepared_transactions = 0), the statement ends the transaction
  if (possible) execute("ROLLBACK PREPARED '" + name + "'");
  CHECK(shop.effects().empty());
  CHECK(shop.keys().empty());
}

TEST_CASE("a constraint that fails at COMMIT rejects the message, stores nothing and caches nothing") {
  Shop shop{"tx_deferred"};
  const std::string e = shop.place.effects();
  const bool unique = GENERATE(true, false);
  if (unique)
    execute("ALTER TABLE " + e + " ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED; INSERT INTO " + e +
            " VALUES ('x')");
  else
    execute("CREATE TABLE " + shop.place.schema() + ".parents (id text PRIMARY KEY); ALTER TABLE " + e +
            " ADD FOREIGN KEY (id) REFERENCES " + shop.place.schema() +
            ".parents DEFERRABLE INITIALLY DEFERRED");
  int starts = 0;
  const auto write = [&](postgres::Transaction& tx, const Note&) {
    ++starts;
    shop.place.write(tx, "x");
  };
  const auto outcome = shop.deliver("e", write, 3);
  CHECK(told(outcome) == (unique ? "rejected 23505" : "rejected 23503"));
  CHECK(outcome.attempts == 1);
  CHECK(shop.keys().empty());
  CHECK(shop.effects() == (unique ? "x" : ""));
  CHECK(told(shop.deliver("e", write, 3)) == told(outcome));
  CHECK(starts == 2);
}

TEST_CASE("a deferred trigger's own error is what the outcome tells") {
  Shop shop{"tx_trigger"};
  const std::string state =
      GENERATE(as<std::string>(), "22012", "P0001", "40001", "25001", "22P02", "42501", "26000");
  CAPTURE(state);
  const std::string s = shop.place.schema();
  execute("CREATE FUNCTION " + s + ".fail() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN RAISE SQLSTATE '" +
          state + "'; END $f$; CREATE CONSTRAINT TRIGGER t AFTER INSERT ON " + shop.place.effects() +
          " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION " + s + ".fail()");
  const auto outcome = shop.deliver(
      "e", [&](postgres::Transaction& tx, const Note& note) { shop.place.write(tx, note.id); }, 2);
  const bool transient = state == "40001";
  CHECK(told(outcome) == (transient ? "deferred " : "rejected ") + state);
  CHECK(outcome.attempts == (transient ? 2U : 1U));
  CHECK(shop.effects().empty());
  CHECK(shop.keys().empty());
}

TEST_CASE("a failure's message holds no value of a row, and no parameter") {
  Shop shop{"tx_secret"};
  const std::string secret = "MARKER4711";
  const std::string e = shop.place.effects();
  execute("ALTER TABLE " + e + " ADD PRIMARY KEY (id), ADD CHECK (note <> '" + secret +
          "'), ADD COLUMN n int");
  execute("INSERT INTO " + e + " VALUES ('" + secret + "')");
  const std::string sql = GENERATE_COPY(
      as<std::string>(), "INSERT INTO " + e + " VALUES ($1)", "INSERT INTO " + e + " VALUES ('x', $1)",
      "INSERT INTO " + e + " (id, note) VALUES (NULL, $1)", "SELECT $1::int", "SELECT $1::date",
      "SELECT $1::jsonb", "SELECT $1::uuid", "SELECT no_such_column, $1::text");
  CAPTURE(sql);
  const bool swallowed = GENERATE(false, true);
  const auto outcome = shop.deliver("e", [&](postgres::Transaction& tx, const Note&) {
    try {
      postgres::exec(tx, sql, secret);
    } catch (const std::exception&) {
      if (!swallowed) throw;
    }
  });
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->message.find("MARKER") == std::string::npos);
  CHECK(outcome.failure->message.find("DETAIL") == std::string::npos);
  CHECK(outcome.failure->message.find('\n') == std::string::npos);
}

TEST_CASE("a failure at COMMIT tells no value either") {
  Shop shop{"tx_secret_commit"};
  const std::string e = shop.place.effects();
  execute("ALTER TABLE " + e + " ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED; INSERT INTO " + e +
          " VALUES ('MARKER')");
  const auto outcome =
      shop.deliver("e", [&](postgres::Transaction& tx, const Note&) { shop.place.write(tx, "MARKER"); });
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->code == "23505");
  CHECK(outcome.failure->message.find("MARKER") == std::string::npos);
}

TEST_CASE("what a handler throws is rolled back, and classed") {
  Shop shop{"tx_throws"};
  const auto fail = [&](const std::function<void()>& raise) {
    return shop.deliver("e", [&](postgres::Transaction& tx, const Note& note) {
      shop.place.write(tx, note.id);
      raise();
    });
  };
  CHECK(fail([] { throw TransientError{"t"}; }).status == Status::deferred);
  CHECK(fail([] { throw PermanentError{"p"}; }).status == Status::rejected);
  CHECK(told(fail([] { throw PreconditionFailed{"f"}; })) == "deferred precondition_failed");
  CHECK(fail([] { throw 42; }).status == Status::deferred);
  CHECK(refusal([&] { return fail([] { throw ConfigurationError{"stop"}; }); }) == "stop");
  CHECK(shop.effects().empty());
  CHECK(shop.keys().empty());
}

TEST_CASE("a missing table, column, function or right in the handler's SQL is left to redelivery") {
  Shop shop{"tx_deploy"};
  const std::string schema = shop.place.schema();
  const std::string sql = GENERATE_COPY(
      as<std::string>(), "SELECT * FROM " + schema + ".nowhere", "SELECT nowhere FROM " + schema + ".effects",
      "SELECT " + schema + ".nowhere()", "INSERT INTO nowhere_s.t VALUES (1)");
  CAPTURE(sql);
  const auto outcome = shop.deliver(
      "e", [&](postgres::Transaction& tx, const Note&) { tx.exec(sql); }, 3);
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.attempts == 1);
}
