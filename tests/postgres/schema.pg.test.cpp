// SPDX-License-Identifier: MIT
#include <idem/postgres/schema.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <future>
#include <latch>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <idem/postgres/outbox.hpp>
#include <idem/postgres/store.hpp>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

namespace idem::tests::upgrading {

namespace {

/// The tables as version 1 made them; `@` stands for the schema.
constexpr std::string_view version_1 = R"(BEGIN ISOLATION LEVEL READ COMMITTED;
CREATE SCHEMA IF NOT EXISTS @;
CREATE TABLE IF NOT EXISTS @.keys (
  tenant       text COLLATE "C" NOT NULL,
  consumer     text COLLATE "C" NOT NULL,
  event_id     text COLLATE "C" NOT NULL,
  claim_token  uuid NOT NULL,
  fingerprint  bytea,
  value        bytea,
  committed_at timestamptz DEFAULT clock_timestamp(),
  window_ends  timestamptz,
  generation   integer NOT NULL DEFAULT 1,
  leased_until timestamptz,
  fence        bigint,
  PRIMARY KEY (tenant, consumer, event_id)
);
CREATE TABLE IF NOT EXISTS @.attempts (
  tenant      text COLLATE "C" NOT NULL,
  consumer    text COLLATE "C" NOT NULL,
  event_id    text COLLATE "C" NOT NULL,
  starts      integer NOT NULL,
  failures    integer NOT NULL DEFAULT 0,
  open_starts uuid[] NOT NULL,
  times_done  integer NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant, consumer, event_id)
);
CREATE SEQUENCE IF NOT EXISTS @.fences;
CREATE TABLE IF NOT EXISTS @.schema_info (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  version  integer NOT NULL
);
INSERT INTO @.schema_info (version) VALUES (1)
  ON CONFLICT (only_row) DO UPDATE SET version = excluded.version WHERE schema_info.version < excluded.version;
COMMIT;
)";

/// Done events (one with a value, a window and a fingerprint), leases with and without an end, and counts.
constexpr std::string_view old_rows = R"(
INSERT INTO @.keys (tenant, consumer, event_id, claim_token)
  SELECT '', 'c', 'old ' || n, gen_random_uuid() FROM generate_series(1, 2000) n;
INSERT INTO @.keys VALUES
  ('acme', 'c', 'whole', gen_random_uuid(), '\x0102', '\x00ff', clock_timestamp(), clock_timestamp() + interval '1 day', 7, NULL, NULL),
  ('', 'c', 'leased', gen_random_uuid(), NULL, NULL, NULL, NULL, 1, clock_timestamp() + interval '1 day', nextval('@.fences')),
  ('', 'c', 'for ever', gen_random_uuid(), NULL, NULL, NULL, NULL, 1, NULL, nextval('@.fences'));
INSERT INTO @.attempts VALUES ('', 'c', 'counted', 3, 1, ARRAY[gen_random_uuid()], 0);
)";

[[nodiscard]] std::string in_schema(std::string_view text, const std::string& schema) {
  std::string sql;
  for (const char c : text) sql += c == '@' ? schema : std::string(1, c);
  return sql;
}

/// A schema of version 1 that has been at work.
struct OldShop {
  explicit OldShop(const std::string& prefix) : place{prefix} {
    run(version_1);
    run(old_rows);
  }
  void run(std::string_view text) const { execute(in_schema(text, place.schema())); }
  /// What stands in the rows that were there from the start.
  [[nodiscard]] std::string old_state() const {
    return place.value(in_schema(
        "SELECT (SELECT md5(string_agg(k::text, ' ' ORDER BY k::text)) FROM @.keys k WHERE consumer = 'c') || "
        "(SELECT md5(string_agg(a::text, ' ')) FROM @.attempts a)",
        place.schema()));
  }
  [[nodiscard]] std::string version() const {
    return place.value("SELECT version FROM " + place.schema() + ".schema_info");
  }

  Playground place;
};

}  // namespace

TEST_CASE("a schema of version 1 is upgraded under workers: every row stays, nothing is lost or doubled",
          "[schema]") {
  const OldShop shop{"sc_upgrade"};
  PostgresOptions options = shop.place.options();
  options.max_connections = 4;
  PostgresStore store{server_dsn(), options};
  CHECK(refusal([&] {
          store.check();
          return 0;
        }).find("version 1, and this library needs 2") != std::string::npos);
  const std::string before = shop.old_state();

  constexpr std::size_t workers = 4;
  constexpr int at_least = 20;
  std::atomic<bool> upgraded = false;
  std::latch at_work{workers};
  std::array<int, workers> handled{};
  std::array<std::exception_ptr, workers> errors{};
  // Half of them publish: until the outbox is there their messages come back, as during any deploy.
  const auto work = [&](std::size_t worker) {
    const bool publishes = worker % 2 == 1;
    const IdempotentConsumer consumer{"new", store, [&](postgres::Transaction& tx, const Note& note) {
                                        shop.place.write(tx, note.id);
                                        if (publishes) enqueue(tx, {.topic = "noted", .key = note.id});
                                      }};
    const IdempotentConsumer old_one{"c", store, [](postgres::Transaction&, const Note&) {}};
    bool begun = false;
    const auto begin = [&] {
      if (!std::exchange(begun, true)) at_work.count_down();
    };
    try {
      for (int after = 0; after < at_least;) {
        const Note note{std::to_string(worker) + "-" + std::to_string(handled[worker])};
        if (consumer(note).action != Action::acknowledge) {
          begin();
          continue;
        }
        if (consumer(note).status != Status::duplicate) throw std::runtime_error{"a duplicate was not found"};
        if (old_one(Note{"old 7"}).status != Status::duplicate)
          throw std::runtime_error{"an old event was new"};
        ++handled[worker];
        begin();
        if (upgraded) ++after;
      }
    } catch (...) {
      errors[worker] = std::current_exception();
      begin();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
  at_work.wait();
  std::string failure;
  try {
    PostgresStore{server_dsn(), shop.place.options()}.create_schema();
  } catch (const std::exception& e) {
    failure = e.what();
    try {
      execute(postgres::schema_sql(shop.place.schema()));  // or the publishing workers never end
    } catch (const std::exception&) {
      for (auto& error : errors) error = std::current_exception();
    }
  }
  upgraded = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);

  CHECK(failure.empty());
  CHECK(shop.version() == "2");
  store.check();
  CHECK(shop.old_state() == before);
  const int all = handled[0] + handled[1] + handled[2] + handled[3];
  CHECK(all >= static_cast<int>(workers) * at_least);
  CHECK(shop.place.count("effects") == std::to_string(all));
  CHECK(shop.place.value("SELECT count(DISTINCT id) FROM " + shop.place.effects()) == std::to_string(all));
  CHECK(shop.place.value("SELECT count(*) FROM " + shop.place.keys() + " WHERE consumer = 'new'") ==
        std::to_string(all));
  CHECK(shop.place.count("outbox") == std::to_string(handled[1] + handled[3]));
}

TEST_CASE("two that upgrade or make a schema at once both succeed", "[schema]") {
  const bool there = GENERATE(true, false);
  CAPTURE(there);
  const OldShop shop{"sc_twice"};
  if (!there) execute("DROP SCHEMA " + shop.place.schema() + " CASCADE");
  std::latch start{2};
  const auto create = [&] {
    start.arrive_and_wait();
    PostgresStore store{server_dsn(), shop.place.options()};
    store.create_schema();
    store.check();
  };
  auto one = std::async(std::launch::async, create);
  auto other = std::async(std::launch::async, create);
  CHECK_NOTHROW(one.get());
  CHECK_NOTHROW(other.get());
  CHECK(shop.version() == "2");
  if (there) CHECK(shop.place.count("keys") == "2003");
}

TEST_CASE("an upgrade and a new schema come to the same tables, and may be repeated", "[schema]") {
  const OldShop old_one{"sc_same"};
  const Playground new_one{"sc_same"};
  const auto described = [](const std::string& schema) {
    return query_value(
        "SELECT string_agg(line, E'\\n' ORDER BY line) FROM ("
        "SELECT concat_ws(' ', table_name, column_name, data_type, collation_name, is_nullable, "
        "replace(column_default, '" +
        schema +
        "', '@'), is_identity, generation_expression) AS line "
        "FROM information_schema.columns WHERE table_schema = '" +
        schema +
        "' AND table_name <> 'effects' "
        "UNION ALL SELECT replace(indexdef, '" +
        schema + "', '@') FROM pg_indexes WHERE schemaname = '" + schema + "') lines");
  };
  for (int round = 0; round < 2; ++round) {
    for (const Playground* place : {&old_one.place, &new_one}) execute(postgres::schema_sql(place->schema()));
    CHECK(described(old_one.place.schema()) == described(new_one.schema()));
  }
  const std::string made = described(new_one.schema());
  for (const char* index : {"keys_window_ends", "outbox_waiting", "dead_letters_open"})
    CHECK(made.find(index) != std::string::npos);
}

TEST_CASE("what version 1 does goes on after the upgrade, its own set-up included", "[schema]") {
  const OldShop shop{"sc_old_worker"};
  PostgresStore store{server_dsn(), shop.place.options()};
  store.create_schema();
  shop.run(version_1);
  CHECK(shop.version() == "2");

  const auto affected = [&](std::string_view sql) {
    pqxx::connection connection{server_dsn()};
    pqxx::nontransaction session{connection};
    return session.exec(in_schema(sql, shop.place.schema())).affected_rows();
  };
  const std::string_view claim =
      "INSERT INTO @.keys (tenant, consumer, event_id, claim_token, fingerprint) VALUES "
      "('', 'c', 'e', gen_random_uuid(), NULL) ON CONFLICT (tenant, consumer, event_id) DO NOTHING "
      "RETURNING pg_current_xact_id(), set_config('lock_timeout', '0', true)";
  CHECK(affected(claim) == 1);
  CHECK(affected(claim) == 0);
  CHECK(
      affected(
          "UPDATE @.keys SET value = decode('00','hex') WHERE tenant = '' AND consumer = 'c' AND event_id = 'e'") ==
      1);
  const IdempotentConsumer consumer{"c", store, [](postgres::Transaction&, const Note&) {}};
  CHECK(consumer(Note{"e"}).status == Status::duplicate);
  CHECK(
      affected(
          "UPDATE @.keys SET claim_token = gen_random_uuid(), fingerprint = NULL, value = NULL, "
          "committed_at = clock_timestamp(), window_ends = clock_timestamp() + '1000 microseconds'::interval, "
          "generation = generation + (committed_at IS NOT NULL)::int, leased_until = NULL "
          "WHERE tenant = '' AND consumer = 'c' AND event_id = 'e'") == 1);
  CHECK(
      affected(
          "INSERT INTO @.keys (tenant, consumer, event_id, claim_token, fingerprint, committed_at, leased_until, "
          "fence) SELECT '', 'c', 'l', gen_random_uuid(), NULL, NULL, clock_timestamp() + NULL::interval, "
          "nextval('@.fences'::regclass) ON CONFLICT (tenant, consumer, event_id) DO NOTHING RETURNING fence") ==
      1);
  CHECK(affected(
            "INSERT INTO @.attempts AS a (tenant, consumer, event_id, starts, open_starts, times_done) "
            "VALUES ('', 'c', 's', 1, ARRAY[gen_random_uuid()], 0) ON CONFLICT (tenant, consumer, event_id) "
            "DO UPDATE SET starts = a.starts + 1 RETURNING starts - 1") == 1);
}

}  // namespace idem::tests::upgrading
