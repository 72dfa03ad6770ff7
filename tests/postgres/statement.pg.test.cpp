// SPDX-License-Identifier: MIT
#include <idem/postgres/statement.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"

#include "support/catch.hpp"

namespace idem::tests::saying {

using namespace std::chrono_literals;

namespace {

/// A playground, a store on it, and a handler that says one INSERT.
struct Said {
  Playground place{"said"};
  PostgresStore store{server_dsn(), place.options()};
  std::string insert = "INSERT INTO " + place.effects() + " (id, note) VALUES ($1, $2)";

  Said() { store.create_schema(); }

  [[nodiscard]] auto handler() const {
    return [this](const Note& note) { return postgres::Statement{insert, note.id, note.text}.affecting(1); };
  }
};

}  // namespace

TEST_CASE("an effect that is said is applied once, and its duplicates and mismatches are found") {
  Said said;
  const IdempotentConsumer consumer{"said.v1", said.store, said.handler()};
  const auto first = consumer(Note{"e-1", "hello"});
  CHECK(first.status == Status::applied);
  CHECK(first.attempts == 1);
  const auto duplicate = consumer(Note{"e-1", "hello"});
  CHECK(duplicate.status == Status::duplicate);
  CHECK(duplicate.attempts == 0);
  const auto mismatch = consumer(Note{"e-1", "other"});
  CHECK(mismatch.status == Status::mismatch);
  CHECK(mismatch.attempts == 0);
  CHECK(consumer(Note{"e-1", "hello", {}, 2}).status == Status::duplicate);
  CHECK(consumer(Note{"e-1", "other", {}, 2}).status == Status::mismatch);
  CHECK(said.place.effect_ids() == "e-1");
}

TEST_CASE("parameters arrive as they are, whatever they hold") {
  Said said;
  execute("ALTER TABLE " + said.place.effects() + " ADD b bytea, ADD j jsonb, ADD n numeric, ADD t boolean");
  const std::string text = "it's \\ \"$1\" {} ; -- \n \xF0\x9F\x98\x80";
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{'\\'}, std::byte{0xFF}};
  const auto insert = [&](const auto&... note) {
    return postgres::Statement{
        "INSERT INTO " + said.place.effects() + " (id, note, b, j, n, t) VALUES ($1, $2, $3, $4, $5, $6)",
        note...};
  };
  const IdempotentConsumer consumer{"said.v1", said.store, [&](const Note& note) {
                                      return insert(note.id, std::optional<std::string>{},
                                                    std::span<const std::byte>{bytes},
                                                    "{\"\xC3\xA9\": \"\\\\\"}", -1.5, true);
                                    }};
  REQUIRE(consumer(Note{"e-1"}).status == Status::applied);
  REQUIRE(consumer(Note{text}).status == Status::applied);
  CHECK(
      said.place.value(
          "SELECT count(*) FROM " + said.place.effects() +
          " WHERE note IS NULL AND b = decode('005cff','hex') AND j ->> chr(233) = chr(92) AND n = -1.5 AND t") ==
      "2");
  CHECK(said.place.value("SELECT id FROM " + said.place.effects() + " WHERE id <> 'e-1'") == text);
  CHECK(consumer(Note{text}).status == Status::duplicate);
}

TEST_CASE("an effect that affects other rows than it said is not there, and is left to redelivery") {
  Said said;
  const IdempotentConsumer consumer{
      "said.v1", said.store,
      [&](const Note& note) {
        return postgres::Statement{
            "UPDATE " + said.place.effects() + " SET note = 'x' WHERE id = $1 -- by id", note.text}
            .affecting(1);
      },
      up_to(3)};
  const auto outcome = consumer(Note{"e-1", "nobody"});
  CHECK(told(outcome) == "deferred precondition_failed");
  CHECK(outcome.attempts == 1);
  CHECK(outcome.failure->message == "0 row(s) affected where 1 were expected");
  CHECK(said.place.count("keys") == "0");
  execute("INSERT INTO " + said.place.effects() + " VALUES ('nobody')");
  CHECK(consumer(Note{"e-1", "nobody"}).status == Status::applied);
  CHECK(consumer(Note{"e-2", "nobody"}).status ==
        Status::applied);  // and the connection is as good as before
}

TEST_CASE("statements that fail take the others and the key with them, and are told as in a handler") {
  Said said;
  execute("CREATE UNIQUE INDEX ON " + said.place.effects() + " (note)");
  const IdempotentConsumer consumer{"said.v1", said.store, [&](const Note& note) {
                                      return postgres::Statements{
                                          postgres::Statement{said.insert, note.id, note.id + "-1"},
                                          postgres::Statement{said.insert, note.id, note.text}};
                                    }};
  REQUIRE(consumer(Note{"e-1", "taken"}).status == Status::applied);
  const auto outcome = consumer(Note{"e-2", "taken"});
  CHECK(told(outcome) == "rejected 23505");
  CHECK(outcome.attempts == 1);
  CHECK(said.place.effect_ids() == "e-1,e-1");
  CHECK(said.place.count("keys") == "1");
}

TEST_CASE("a constraint that fails at COMMIT is told, and nothing is there") {
  Said said;
  execute("CREATE TABLE " + said.place.schema() + ".owners (id text PRIMARY KEY); ALTER TABLE " +
          said.place.effects() + " ADD FOREIGN KEY (note) REFERENCES " + said.place.schema() +
          ".owners DEFERRABLE INITIALLY DEFERRED");
  const IdempotentConsumer consumer{"said.v1", said.store, said.handler()};
  CHECK(told(consumer(Note{"e-1", "nobody"})) == "rejected 23503");
  CHECK(said.place.effect_ids().empty());
  execute("INSERT INTO " + said.place.schema() + ".owners VALUES ('nobody')");
  CHECK(consumer(Note{"e-1", "nobody"}).status == Status::applied);
}

TEST_CASE("no statement leads out of the message") {
  Said said;
  const auto saying = [&](const std::string& sql) {
    const IdempotentConsumer consumer{"out.v1", said.store, [&](const Note& note) {
                                        return postgres::Statements{
                                            postgres::Statement{said.insert, note.id, "x"},
                                            postgres::Statement{sql}};
                                      }};
    return told(consumer(Note{sql}));
  };
  CHECK(saying("SELECT 1; COMMIT; SELECT 2") == "rejected 42601");
  CHECK(saying("ROLLBACK; BEGIN") == "rejected 42601");
  CHECK(saying("SELECT 1 /* ") == "rejected 42601");
  CHECK(said.place.effect_ids().empty());
  CHECK(said.place.count("keys") == "0");
  CHECK(saying("ROLLBACK") == "rejected transaction_ended_by_handler");
  CHECK(saying("COMMIT") == "rejected transaction_ended_by_handler");
}

TEST_CASE("what a handler throws counts only where its event is new") {
  Said said;
  bool fails = false;
  const IdempotentConsumer consumer{"said.v1", said.store, [&](const Note& note) {
                                      if (fails) throw PermanentError{"not today"};
                                      return postgres::Statement{said.insert, note.id, note.text};
                                    }};
  REQUIRE(consumer(Note{"e-1"}).status == Status::applied);
  fails = true;
  CHECK(consumer(Note{"e-1"}).status == Status::duplicate);
  CHECK(consumer(Note{"e-1", "other"}).status == Status::mismatch);
  const auto outcome = consumer(Note{"e-2"});
  CHECK(outcome.status == Status::rejected);
  CHECK(outcome.failure->message == "not today");
  CHECK(said.place.count("keys") == "1");
}

TEST_CASE("an empty effect makes the event handled") {
  Said said;
  const IdempotentConsumer consumer{"said.v1", said.store,
                                    [](const Note&) { return postgres::Statements{}; }};
  CHECK(consumer(Note{"e-1"}).status == Status::applied);
  CHECK(consumer(Note{"e-1"}).status == Status::duplicate);
}

TEST_CASE("twenty threads that say the effect of one event have it once") {
  Said said;
  const IdempotentConsumer consumer{"said.v1", said.store, said.handler()};
  std::atomic<int> applied{0};
  std::atomic<int> duplicates{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 20; ++i)
      threads.emplace_back([&] {
        const auto status = consumer(Note{"e-1"}).status;
        if (status == Status::applied) ++applied;
        if (status == Status::duplicate) ++duplicates;
      });
  }
  CHECK(applied == 1);
  CHECK(duplicates == 19);
  CHECK(said.place.effect_ids() == "e-1");
}

TEST_CASE("an event held by another transaction is waited for, and taken over when that rolls back") {
  Said said;
  const IdempotentConsumer consumer{"said.v1", said.store, said.handler()};
  pqxx::connection other{server_dsn()};
  std::optional<pqxx::work> holder{std::in_place, other};
  REQUIRE(postgres::claim(*holder, Key{"", "said.v1", "e-1"}, fingerprint_of(""), said.place.schema()) ==
          postgres::Claimed::fresh);
  // The message that does everything waits a moment only; past that, the call waits as every other one.
  const int pid = pid_of(*holder);
  std::optional<Outcome<>> outcome;
  std::jthread caller{[&] { outcome = consumer(Note{"e-1"}); }};
  await_waiter_behind(pid);
  SECTION("it rolls back") {
    holder->abort();
    caller.join();
    CHECK(outcome->status == Status::applied);
  }
  SECTION("it commits") {
    holder->commit();
    caller.join();
    CHECK(outcome->status == Status::duplicate);
  }
}

TEST_CASE(
    "an effect that is said is there once with windows, counted starts, batches and isolation levels too") {
  Said said;
  SECTION("a key whose window has ended is taken over") {
    const IdempotentConsumer consumer{"said.v1", said.store, said.handler(), ConsumerOptions{.window = 24h}};
    REQUIRE(consumer(Note{"e-1"}).status == Status::applied);
    CHECK(consumer(Note{"e-1"}).status == Status::duplicate);
    execute("UPDATE " + said.place.keys() + " SET window_ends = clock_timestamp() - interval '1 s'");
    const IdempotentConsumer for_ever{"said.v1", said.store, said.handler()};
    CHECK(for_ever(Note{"e-1", {}, {}, 2}).status == Status::applied);
    CHECK(said.place.effect_ids() == "e-1,e-1");
  }
  SECTION("starts are counted") {
    const IdempotentConsumer consumer{"said.v1", said.store, said.handler(),
                                      ConsumerOptions{.attempts = Attempts::counted_by_store}};
    CHECK(consumer(Note{"e-1"}).status == Status::applied);
    CHECK(consumer(Note{"e-1"}).status == Status::duplicate);
    CHECK(said.place.effect_ids() == "e-1");
  }
  SECTION("a batch") {
    const IdempotentConsumer consumer{"said.v1", said.store, said.handler()};
    const auto report = consumer.process_batch(std::vector<Note>{{"e-1"}, {"e-2"}, {"e-1"}});
    CHECK(told(report.outcomes[0]) == "applied");
    CHECK(told(report.outcomes[1]) == "applied");
    CHECK(told(report.outcomes[2]) == "duplicate");
    CHECK(said.place.effect_ids() == "e-1,e-2");
  }
  SECTION("serializable") {
    PostgresStore strict{server_dsn(), {.schema = said.place.schema(), .isolation = Isolation::serializable}};
    const IdempotentConsumer consumer{"said.v1", strict, said.handler()};
    CHECK(consumer(Note{"e-1"}).status == Status::applied);
    CHECK(consumer(Note{"e-1"}).status == Status::duplicate);
  }
}

TEST_CASE("a store that meets more different texts than it keeps prepared handles them all") {
  Said said;
  PostgresStore one{server_dsn(), {.schema = said.place.schema(), .max_connections = 1}};
  const IdempotentConsumer consumer{
      "said.v1", one, [&](const Note& note) {
        return postgres::Statement{"INSERT INTO " + said.place.effects() + " VALUES ('" + note.id + "')"};
      }};
  for (int i = 0; i < 70; ++i) REQUIRE(consumer(Note{std::to_string(i)}).status == Status::applied);
  CHECK(said.place.count("effects") == "70");
}

TEST_CASE("a table that changes under a prepared statement costs nothing but time") {
  Said said;
  PostgresStore one{server_dsn(), {.schema = said.place.schema(), .max_connections = 1}};
  SECTION("said") {
    const IdempotentConsumer consumer{"said.v1", one, [&](const Note& note) {
                                        return postgres::Statements{
                                            postgres::Statement{said.insert, note.id, "x"},
                                            postgres::Statement{"SELECT * FROM " + said.place.effects()}};
                                      }};
    REQUIRE(consumer(Note{"e-1"}).status == Status::applied);
    execute("ALTER TABLE " + said.place.effects() + " ADD more integer");
    const auto outcome = consumer(Note{"e-2"});
    CHECK(outcome.status == Status::applied);
    CHECK(consumer(Note{"e-3"}).status == Status::applied);
  }
  SECTION("run") {
    const IdempotentConsumer consumer{"run.v1", one, [&](postgres::Transaction& tx, const Note& note) {
                                        said.place.write(tx, note.id);
                                        postgres::exec(tx, "SELECT * FROM " + said.place.effects());
                                      }};
    for (const char* id : {"e-1", "e-2", "e-3"}) REQUIRE(consumer(Note{id}).status == Status::applied);
    execute("ALTER TABLE " + said.place.effects() + " ADD more integer");
    const auto outcome = consumer(Note{"e-4"});
    CHECK(outcome.status == Status::applied);
    CHECK(outcome.attempts == 2);
    CHECK(said.place.effect_ids() == "e-1,e-2,e-3,e-4");
  }
}

TEST_CASE("a handler's statement is prepared when its connection meets it again") {
  Said said;
  PostgresStore one{server_dsn(), {.schema = said.place.schema(), .max_connections = 1}};
  std::string prepared;
  const IdempotentConsumer consumer{
      "run.v1", one, [&](postgres::Transaction& tx, const Note& note) {
        postgres::exec(tx, said.insert, note.id, note.text);
        prepared =
            tx.exec(std::string{"SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql"})[0][0]
                .c_str();
      }};
  REQUIRE(consumer(Note{"e-1"}).status == Status::applied);
  CHECK(prepared == "0");
  REQUIRE(consumer(Note{"e-2"}).status == Status::applied);
  CHECK(prepared == "1");
  REQUIRE(consumer(Note{"e-3"}).status == Status::applied);
  CHECK(prepared == "1");
}

TEST_CASE("a handler that drops the session's prepared statements loses nothing") {
  Said said;
  PostgresStore one{server_dsn(), {.schema = said.place.schema(), .max_connections = 1}};
  const IdempotentConsumer consumer{"run.v1", one,
                                    [&](postgres::Transaction& tx, const Note& note) {
                                      said.place.write(tx, note.id);
                                      if (note.text == "drop") {
                                        tx.exec(std::string{"DEALLOCATE ALL"});
                                        said.place.write(tx, note.id + "+");
                                      }
                                    },
                                    up_to(2)};
  for (const char* id : {"e-1", "e-2"}) REQUIRE(consumer(Note{id}).status == Status::applied);
  CHECK(consumer(Note{"e-3", "drop"}).status == Status::applied);
  CHECK(consumer(Note{"e-4"}).status == Status::applied);
  CHECK(said.place.effect_ids() == "e-1,e-2,e-3,e-3+,e-4");
}

TEST_CASE("a statement says what it is") {
  const auto statement =
      postgres::Statement{"UPDATE t SET a = $1 WHERE b = $2", 5, std::nullopt}.affecting(2);
  CHECK(statement.sql() == "UPDATE t SET a = $1 WHERE b = $2");
  REQUIRE(statement.parameters().size() == 2);
  CHECK(statement.parameters()[0] == "5");
  CHECK_FALSE(statement.parameters()[1].has_value());
  CHECK(statement.rows() == 2U);
  CHECK_THROWS_AS((postgres::Statement{"SELECT $1", std::string{"a\0b", 3}}), PermanentError);
}

}  // namespace idem::tests::saying
