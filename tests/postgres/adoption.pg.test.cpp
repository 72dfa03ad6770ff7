// SPDX-License-Identifier: MIT
// examples/adoption/migrate.sql, with old and new code at work while it runs.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"

#include "support/catch.hpp"

namespace idem::tests::adopting {

namespace {

constexpr const char* tenant = "0a0b0c0d-0000-4000-8000-000000000001";
constexpr const char* name = "charge-order.v1";

std::string id_of(int event) { return fmt::format("0a0b0c0d-0000-4000-9000-{:012}", event); }

struct Delivery {
  std::string id;
};

Event event_of(const Delivery& delivery) {
  return {.tenant = tenant, .id = delivery.id, .fingerprint = fingerprint_of(delivery.id)};
}

/// A database with the old table, a ledger of what was handled and by whom, and the library's schema.
struct Shop {
  Database database;
  std::string dsn = database.dsn();

  Shop() {
    execute(
        "CREATE TABLE processed_events (tenant_id uuid, consumer text, event_id uuid, PRIMARY KEY (tenant_id, "
        "consumer, event_id)); CREATE TABLE ledger (event_id text, who text)",
        dsn);
    PostgresStore{dsn}.create_schema();
  }
  [[nodiscard]] std::string value(const std::string& sql) const { return query_value(sql, dsn); }

  /// Runs one step of the script, statement after statement, as psql does.
  void step(int number) const {
    const auto file = std::filesystem::path{__FILE__}.parent_path() / "../../examples/adoption/migrate.sql";
    std::ifstream stream{file};
    const std::string all{std::istreambuf_iterator<char>{stream}, {}};
    const auto from = all.find("-- Step " + std::to_string(number));
    const auto to = all.find("-- Step " + std::to_string(number + 1));
    if (from == std::string::npos) throw std::runtime_error{"no such step in " + file.string()};
    std::string sql = all.substr(from, to - from);
    if (number == 3)  // is commented out
      for (std::size_t at = 0; (at = sql.find("\n-- ", at)) != std::string::npos;) sql.replace(at, 4, "\n");
    if (number == 3) sql = sql.substr(sql.find("SET "));
    // A procedure that commits wants a message of its own.
    const auto call = sql.find("CALL ");
    execute(sql.substr(0, call), dsn);
    if (call != std::string::npos) execute("CALL idem.move_events(7)", dsn);
  }
};

enum class Old { on_conflict, unique_violation };

/// The old code: true when the event is done.
bool handle_old(pqxx::connection& connection, const std::string& id, Old how, bool fails = false) {
  try {
    pqxx::work tx{connection};
    std::string insert =
        std::string{"INSERT INTO processed_events VALUES ('"} + tenant + "', '" + name + "', '" + id + "')";
    if (how == Old::on_conflict) insert += " ON CONFLICT DO NOTHING";
    try {
      if (tx.exec(insert).affected_rows() == 0) return true;
    } catch (const pqxx::unique_violation&) {
      return true;
    }
    tx.exec("INSERT INTO ledger VALUES ('" + id + "', 'old')");
    if (fails) return false;
    tx.commit();
    return true;
  } catch (const pqxx::failure&) {  // comes again
    return false;
  }
}

/// The new code in its three forms: true when the event is done.
bool handle_claimed(pqxx::connection& connection, const std::string& id, bool fails = false) {
  try {
    pqxx::work tx{connection};
    if (postgres::claim(tx, Key{tenant, name, id}, fingerprint_of(id)) != postgres::Claimed::fresh)
      return true;
    tx.exec("INSERT INTO ledger VALUES ('" + id + "', 'claim')");
    if (fails) return false;
    tx.commit();
    return true;
  } catch (const pqxx::failure&) {
    return false;
  }
}

bool handle_consumed(PostgresStore& store, const std::string& id, bool fails = false) {
  const IdempotentConsumer consumer{name, store, [&](postgres::Transaction& tx, const Delivery& delivery) {
                                      postgres::exec(tx, "INSERT INTO ledger VALUES ($1, 'consumer')",
                                                     delivery.id);
                                      if (fails) throw TransientError{"later"};
                                    }};
  return consumer(Delivery{id}).action == Action::acknowledge;
}

bool handle_said(PostgresStore& store, const std::string& id) {
  const IdempotentConsumer consumer{
      name, store, [](const Delivery& delivery) {
        return postgres::Statement{"INSERT INTO ledger VALUES ($1, 'said')", delivery.id};
      }};
  return consumer(Delivery{id}).action == Action::acknowledge;
}

/// Delivers the events of [from, to) in an order of its own until each is acknowledged; every third first fails.
template <class Handle>
void deliver_all(int from, int to, unsigned seed, const std::atomic<bool>& stop, Handle handle) {
  std::vector<int> events;
  for (int event = from; event < to; ++event) events.push_back(event);
  std::shuffle(events.begin(), events.end(), std::mt19937{seed});
  for (const int event : events) {
    if (event % 3 == 0) static_cast<void>(handle(id_of(event), true));
    while (!stop && !handle(id_of(event), false)) std::this_thread::yield();
    if (stop) return;
  }
}

}  // namespace

TEST_CASE("old and new code at work through a whole migration handle every event once", "[adoption]") {
  const Shop shop;
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  constexpr int history = 100;
  constexpr int live = 400;
  {
    pqxx::connection connection{shop.dsn};
    for (int event = 0; event < history; ++event)
      REQUIRE(handle_old(connection, id_of(event), Old::on_conflict));
  }

  PostgresStore store{shop.dsn};
  std::atomic<bool> migrating = false;
  std::atomic<bool> stop_old = false;
  const std::atomic<bool> never = false;
  std::vector<std::future<void>> old_code;
  std::vector<std::future<void>> new_code;
  for (unsigned thread = 0; thread < 3; ++thread)
    old_code.push_back(std::async(std::launch::async, [&, thread] {
      pqxx::connection connection{shop.dsn};
      // Again and again, as long as there are old instances; half of the events come after step 1.
      for (unsigned round = 0; !stop_old; ++round)
        deliver_all(0, migrating ? live : live / 2, seed + thread + 10 * round, stop_old,
                    [&](const std::string& id, bool fails) {
                      return handle_old(connection, id,
                                        thread == 0 ? Old::unique_violation : Old::on_conflict, fails);
                    });
    }));
  const auto handled_by = [&](const std::string& who) {
    return std::stoi(shop.value("SELECT count(*) FROM ledger WHERE who " + who));
  };
  try {
    await("old code at work", [&] { return handled_by("= 'old'") > history + 20; });
    shop.step(1);
    migrating = true;
    // New code that starts too early is put off where it does not know enough.
    CHECK_FALSE(handle_consumed(store, id_of(0)));
    CHECK_FALSE(handle_claimed(*std::make_unique<pqxx::connection>(shop.dsn), id_of(1)));
    CHECK_FALSE(handle_said(store, id_of(2)));
    shop.step(2);
    for (unsigned thread = 0; thread < 4; ++thread)
      new_code.push_back(std::async(std::launch::async, [&, thread] {
        pqxx::connection connection{shop.dsn};
        deliver_all(0, 2 * live, seed + 100 + thread, never, [&](const std::string& id, bool fails) {
          if (thread == 0) return handle_claimed(connection, id, fails);
          return thread == 1 && !fails ? handle_said(store, id) : handle_consumed(store, id, fails);
        });
      }));
    // The old code meets events that the new one handled, and the other way round.
    await("new code at work", [&] { return handled_by("<> 'old'") > 100; });
  } catch (const std::exception& e) {
    UNSCOPED_INFO(e.what());
    CHECK(false);
  }
  stop_old = true;
  for (auto& worker : old_code) worker.get();
  shop.step(3);
  for (auto& worker : new_code) worker.get();

  CHECK(shop.value("SELECT count(*) FROM ledger") == std::to_string(2 * live));
  CHECK(shop.value("SELECT count(DISTINCT event_id) FROM ledger") == std::to_string(2 * live));
  CHECK(shop.value("SELECT count(*) FROM idem.keys") == std::to_string(2 * live));
}

TEST_CASE("each code waits for an event that the other has in hand, and then takes it for handled",
          "[adoption]") {
  const Shop shop;
  shop.step(1);
  shop.step(2);
  const Old how = GENERATE(Old::on_conflict, Old::unique_violation);
  const bool commits = GENERATE(true, false);
  const bool new_first = GENERATE(true, false);
  CAPTURE(static_cast<int>(how), commits, new_first);
  PostgresStore store{shop.dsn};
  pqxx::connection connection{shop.dsn};
  pqxx::work first{connection};
  if (new_first)
    CHECK(postgres::claim(first, Key{tenant, name, id_of(1)}, fingerprint_of(id_of(1))) ==
          postgres::Claimed::fresh);
  else
    first.exec(std::string{"INSERT INTO processed_events VALUES ('"} + tenant + "', '" + name + "', '" +
               id_of(1) + "')");
  first.exec("INSERT INTO ledger VALUES ('" + id_of(1) + "', 'first')");
  const int pid = pid_of(first);
  auto second = std::async(std::launch::async, [&] {
    pqxx::connection other{shop.dsn};
    return new_first ? handle_old(other, id_of(1), how) : handle_consumed(store, id_of(1));
  });
  try {
    await_waiter_behind(pid);
  } catch (const std::exception& e) {
    UNSCOPED_INFO(e.what());
    CHECK(false);
  }
  if (commits)
    first.commit();
  else
    first.abort();
  CHECK(second.get());
  CHECK(shop.value("SELECT string_agg(who, ',') FROM ledger") == (commits     ? "first"
                                                                  : new_first ? "old"
                                                                              : "consumer"));
}

TEST_CASE("consumers that the old code never had are left alone by the migration", "[adoption]") {
  const Shop shop;
  shop.step(1);
  shop.step(2);
  PostgresStore store{shop.dsn};
  const IdempotentConsumer consumer{"other.v1", store, [](postgres::Transaction&, const Note&) {}};
  CHECK(told(consumer(Note{"invoice 7", {}, "acme"})) == "applied");
  CHECK(told(consumer(Note{"invoice 7", {}, "acme"})) == "duplicate");
  CHECK(shop.value("SELECT count(*) FROM processed_events") == "0");
  shop.step(3);
  CHECK(told(consumer(Note{"invoice 8", {}, "acme"})) == "applied");
}

}  // namespace idem::tests::adopting
