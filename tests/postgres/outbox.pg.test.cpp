// SPDX-License-Identifier: MIT
#include <idem/postgres/outbox.hpp>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <idem/postgres/claim.hpp>
#include <idem/postgres/store.hpp>

#include "conformance/outbox.hpp"
#include "conformance/postgres_bench.hpp"
#include "support/catch.hpp"
#include "support/fault_proxy.hpp"

namespace idem::tests::publishing {

namespace {

using postgres::claim;
using postgres::Claimed;

struct PublishingBench : PostgresBench {
  using PostgresBench::PostgresBench;

  [[nodiscard]] std::vector<OutboxMessage> outbox() const {
    pqxx::connection connection{server_dsn()};
    pqxx::nontransaction session{connection};
    const auto rows = session.exec(
        "SELECT topic, key, encode(payload, 'hex'), id, (SELECT string_agg(encode(convert_to(h, 'UTF8'), 'hex') || '.', '' "
        "ORDER BY n) FROM unnest(headers) WITH ORDINALITY AS u (h, n)) FROM " +
        schema + ".outbox ORDER BY seq");
    std::vector<OutboxMessage> messages;
    for (const auto& row : rows) {
      OutboxMessage message{.topic = row[0].c_str(),
                            .key = row[1].c_str(),
                            .payload = postgres::detail::bytes_of_hex(row[2].c_str()),
                            .id = row[3].c_str()};
      std::string_view rest = row[4].c_str();
      const auto next = [&] {
        const auto end = rest.find('.');
        std::string text = postgres::detail::bytes_of_hex(rest.substr(0, end));
        rest.remove_prefix(end + 1);
        return text;
      };
      while (!rest.empty()) {
        std::string name = next();
        message.headers.emplace(std::move(name), next());
      }
      messages.push_back(std::move(message));
    }
    return messages;
  }
  void advance(Duration span) const {
    const auto by = postgres::detail::interval(span);
    execute("UPDATE " + schema + ".keys SET leased_until = leased_until - " + by +
            ", window_ends = window_ends - " + by);
  }
  /// The outbox, a message a line.
  [[nodiscard]] std::string told() const {
    return query_value(
        "SELECT coalesce(string_agg(concat_ws('|', tenant, consumer, event_id, topic, id), ' ' ORDER BY seq), '') FROM " +
        schema + ".outbox");
  }
  [[nodiscard]] std::string enqueue_one(pqxx::transaction_base& tx, const std::string& id = {}) const {
    return postgres::enqueue(tx, {.topic = "t", .id = id}, schema);
  }
};

struct RepeatableReadPublishingBench : PublishingBench {
  RepeatableReadPublishingBench() : PublishingBench{Isolation::repeatable_read} {}
};

[[nodiscard]] Claimed claim_on(const PublishingBench& bench, pqxx::dbtransaction& tx, const std::string& id) {
  return claim(tx, Key{"", "c", id}, {}, bench.schema);
}

[[nodiscard]] std::string promised(const std::string& id, std::uint64_t position,
                                   std::uint64_t generation = 1) {
  return promised_id(Key{"", "c", id}, position, generation);
}

}  // namespace

TEST_CASE("a handler on a PostgresStore publishes", "[outbox]") {
  show_all(outbox_behaviours<PublishingBench>());
}
TEST_CASE("a handler on a PostgresStore at REPEATABLE READ publishes", "[outbox]") {
  show_all(outbox_behaviours<RepeatableReadPublishingBench>());
}

TEST_CASE("a message is stored with the event that it is of, a bulk handler's with none", "[outbox]") {
  PublishingBench bench;
  const IdempotentConsumer pay{"pay.v1", bench.store, [](postgres::Transaction& tx, const Payment&) {
                                 enqueue(tx, {.topic = "paid", .id = "1"});
                               }};
  CHECK(pay(Payment{.id = "caf\xC3\xA9", .tenant = "acme"}).status == Status::applied);
  const IdempotentConsumer bulk{"bulk.v1", bench.store,
                                [](postgres::Transaction& tx, std::span<const Payment* const>) {
                                  enqueue(tx, {.topic = "paid", .id = "2"});
                                }};
  CHECK(bulk(Payment{.id = "p-1", .tenant = "acme"}).status == Status::applied);
  CHECK(bench.told() == "acme|pay.v1|caf\xC3\xA9|paid|1 acme|bulk.v1||paid|2");
}

TEST_CASE("an event that runs again after its key was purged publishes under new ids", "[outbox]") {
  PublishingBench bench;
  Ids ids;
  const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 1)};
  CHECK(pay(Payment{}).status == Status::applied);
  execute("UPDATE " + bench.schema + ".schema_info SET purges = purges + 1; DELETE FROM " + bench.schema +
          ".keys");
  CHECK(pay(Payment{}).status == Status::applied);
  const Key key{"", "pay.v1", "p-1"};
  CHECK(ids == Ids{promised_id(key, 0, 1, 0), promised_id(key, 0, 1, 1)});
  CHECK(ids_in_outbox(bench) == ids);

  INFO("a key that was removed by hand: the event's old messages may be sent already");
  execute("DELETE FROM " + bench.schema + ".keys");
  const auto outcome = pay(Payment{});
  CHECK(outcome.status == Status::deferred);
  CHECK(contains(outcome.failure.value().message, "add 1 to schema_info.purges"));
}

TEST_CASE("a transaction that cannot see a purge tells no id", "[outbox]") {
  PublishingBench bench;
  {
    pqxx::connection connection{server_dsn()};
    pqxx::work tx{connection};
    REQUIRE(claim_on(bench, tx, "e") == Claimed::fresh);
    tx.commit();
  }
  pqxx::connection connection{server_dsn()};
  pqxx::transaction<pqxx::isolation_level::repeatable_read> tx{connection};
  tx.exec(std::string{"SELECT 1"});  // from here on it sees what is committed now
  execute("UPDATE " + bench.schema + ".schema_info SET purges = purges + 1; DELETE FROM " + bench.schema +
          ".keys");
  REQUIRE(claim_on(bench, tx, "e") == Claimed::fresh);
  CHECK(
      contains(refused<TransientError>([&] { static_cast<void>(bench.enqueue_one(tx)); }), "only a new one"));
  tx.commit();
  CHECK(bench.told().empty());
}

TEST_CASE("a service that claims publishes with its own transaction", "[outbox]") {
  PublishingBench bench;
  pqxx::connection connection{server_dsn()};
  const auto claim_and_publish = [&](bool commits) {
    pqxx::work tx{connection};
    const auto answer = claim_on(bench, tx, "e");
    Ids ids;
    if (answer == Claimed::fresh)
      ids = {bench.enqueue_one(tx), bench.enqueue_one(tx, "mine"), bench.enqueue_one(tx)};
    if (commits) tx.commit();
    return ids;
  };
  const Ids ids{promised("e", 0), "mine", promised("e", 2)};
  CHECK(claim_and_publish(false) == ids);
  CHECK(bench.outbox().empty());
  CHECK(claim_and_publish(true) == ids);
  CHECK(ids_in_outbox(bench) == ids);
  CHECK(claim_and_publish(true).empty());
  CHECK(ids_in_outbox(bench) == ids);

  INFO("a window that ended makes the key new");
  execute("UPDATE " + bench.schema + ".keys SET window_ends = clock_timestamp() - interval '1 hour'");
  pqxx::work tx{connection};
  CHECK(claim_on(bench, tx, "e") == Claimed::fresh);
  CHECK(bench.enqueue_one(tx) == promised("e", 0, 2));
  CHECK(contains(refused([&] { static_cast<void>(bench.enqueue_one(tx, "mine")); }), "\"mine\" is taken"));
  tx.commit();
}

TEST_CASE("a message belongs to the last claim that was fresh, and to none after another answer",
          "[outbox]") {
  PublishingBench bench;
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  const auto refusal_of = [&] { return refused([&] { static_cast<void>(bench.enqueue_one(tx)); }); };
  CHECK(contains(refusal_of(), "after postgres::claim answered fresh"));
  CHECK(
      contains(refused([&] { static_cast<void>(bench.enqueue_one(tx, "mine")); }), "outside an open claim"));
  CHECK(claim_on(bench, tx, "a") == Claimed::fresh);
  CHECK(bench.enqueue_one(tx) == promised("a", 0));
  CHECK(claim_on(bench, tx, "b") == Claimed::fresh);
  CHECK(bench.enqueue_one(tx) == promised("b", 0));
  CHECK(bench.enqueue_one(tx) == promised("b", 1));
  CHECK(claim_on(bench, tx, "a") == Claimed::duplicate);
  CHECK(contains(refusal_of(), "outside an open claim"));
  CHECK(claim_on(bench, tx, "c") == Claimed::fresh);
  CHECK(bench.enqueue_one(tx) == promised("c", 0));
  tx.commit();
  pqxx::work next{connection};
  CHECK(contains(refused([&] { static_cast<void>(bench.enqueue_one(next)); }), "outside an open claim"));
}

TEST_CASE("an abandoned subtransaction takes its messages back, and their places with them", "[outbox]") {
  PublishingBench bench;
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  CHECK(claim_on(bench, tx, "e") == Claimed::fresh);
  CHECK(bench.enqueue_one(tx) == promised("e", 0));
  {
    pqxx::subtransaction abandoned{tx};
    CHECK(bench.enqueue_one(abandoned) == promised("e", 1));
  }
  {
    pqxx::subtransaction kept{tx};
    CHECK(bench.enqueue_one(kept) == promised("e", 1));
    kept.commit();
  }
  CHECK(bench.enqueue_one(tx) == promised("e", 2));
  {
    pqxx::subtransaction abandoned{tx};
    CHECK(claim_on(bench, abandoned, "other") == Claimed::fresh);
  }
  CHECK(bench.enqueue_one(tx) == promised("e", 3));
  tx.commit();
  CHECK(ids_in_outbox(bench) == Ids{promised("e", 0), promised("e", 1), promised("e", 2), promised("e", 3)});
}

TEST_CASE("in a handler, a subtransaction is told where to publish, and the transaction's base publishes",
          "[outbox]") {
  PublishingBench bench;
  const IdempotentConsumer pay{
      "c", bench.store, [&](postgres::Transaction& tx, const Payment&) {
        CHECK(bench.enqueue_one(static_cast<pqxx::transaction_base&>(tx)) == promised("p-1", 0));
        {
          pqxx::subtransaction inner{tx};
          CHECK(contains(refused([&] { static_cast<void>(bench.enqueue_one(inner)); }),
                         "before or after the subtransaction"));
          inner.commit();
        }
        CHECK(enqueue(tx, {.topic = "t"}) == promised("p-1", 1));
      }};
  CHECK(pay(Payment{}).status == Status::applied);
  CHECK(ids_in_outbox(bench).size() == 2);
}

TEST_CASE("a transaction that its handler ended publishes nothing", "[outbox]") {
  PublishingBench bench;
  const std::string id = GENERATE(as<std::string>(), "", "mine");
  const IdempotentConsumer pay{
      "pay.v1", bench.store, [&](postgres::Transaction& tx, const Payment&) {
        postgres::exec(tx, "ROLLBACK");
        CHECK(contains(refused([&] { enqueue(tx, {.topic = "t", .id = id}); }), "outside an open claim"));
      }};
  const auto outcome = pay(Payment{});
  CHECK(outcome.failure.value().code == code::transaction_ended_by_handler);
  CHECK(bench.outbox().empty());
}

TEST_CASE("a connection's encoding and ways of quoting change no byte of a message", "[outbox]") {
  PublishingBench bench;
  const std::string encoding = GENERATE(as<std::string>(), "UTF8", "LATIN1");
  const std::string conforming = GENERATE(as<std::string>(), "on", "off");
  CAPTURE(encoding, conforming);
  pqxx::connection connection{"options='-c client_encoding=" + encoding +
                              " -c bytea_output=escape -c standard_conforming_strings=" + conforming + "'"};
  const std::string text = "caf\xC3\xA9 \xE2\x82\xAC '\\";
  const OutboxMessage message{
      .topic = text, .key = text, .payload = std::string{"\0\xFF\\", 3}, .headers = {{text, text}}};
  OutboxMessage named = message;
  named.id = text;
  const Key key{text, text, text};
  pqxx::work tx{connection};
  REQUIRE(claim(tx, key, {}, bench.schema) == Claimed::fresh);
  CHECK(postgres::enqueue(tx, message, bench.schema) == promised_id(key, 0));
  CHECK(postgres::enqueue(tx, named, bench.schema) == text);
  CHECK(postgres::enqueue(tx, message, bench.schema) == promised_id(key, 2));
  tx.commit();
  const auto found = bench.outbox();
  REQUIRE(found.size() == 3);
  for (const OutboxMessage& one : found) {
    CHECK(one.topic == text);
    CHECK(one.key == text);
    CHECK(one.payload == message.payload);
    CHECK(one.headers == message.headers);
  }
  CHECK(found[1].id == text);
  CHECK(query_value("SELECT DISTINCT concat_ws('|', tenant, consumer, event_id) FROM " + bench.schema +
                    ".outbox") == text + "|" + text + "|" + text);
}

TEST_CASE("a handler that changes its connection's encoding publishes the same bytes", "[outbox]") {
  PublishingBench bench;
  const IdempotentConsumer pay{"caf\xC3\xA9", bench.store, [&](postgres::Transaction& tx, const Payment&) {
                                 postgres::exec(tx, "SET LOCAL client_encoding = 'LATIN1'");
                                 enqueue(tx, {.topic = "caf\xC3\xA9"});
                               }};
  CHECK(pay(Payment{.id = "\xC3\xA9"}).status == Status::applied);
  const std::string id = promised_id(Key{"", "caf\xC3\xA9", "\xC3\xA9"}, 0);
  CHECK(bench.told() == "|caf\xC3\xA9|\xC3\xA9|caf\xC3\xA9|" + id);
}

TEST_CASE("a message costs one round trip", "[outbox]") {
  PublishingBench bench;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = bench.schema, .max_connections = 1}};
  Ids ids;
  const IdempotentConsumer none{"none", store, publishing_handler(bench, ids, 0)};
  const IdempotentConsumer one{"one", store, publishing_handler(bench, ids, 1)};
  const IdempotentConsumer two{"two", store, publishing_handler(bench, ids, 2)};
  for (const char* id : {"warm-up", "and prepare"}) REQUIRE(two(Payment{.id = id}).status == Status::applied);
  const auto trips = [&](const auto& consumer) {
    proxy.reset_counts();
    REQUIRE(consumer(Payment{}).status == Status::applied);
    return proxy.round_trips();
  };
  CHECK(trips(none) == 3);
  CHECK(trips(one) == 4);
  CHECK(trips(two) == 5);

  pqxx::connection connection{proxy.dsn()};
  pqxx::work tx{connection};
  tx.exec(std::string{"SELECT 1"});
  proxy.reset_counts();
  CHECK(claim_on(bench, tx, "e") == Claimed::fresh);
  CHECK(proxy.round_trips() == 1);
  CHECK(bench.enqueue_one(tx) == promised("e", 0));
  CHECK(proxy.round_trips() == 2);
}

TEST_CASE("a message whose COMMIT answer is lost is published once", "[outbox]") {
  PublishingBench bench;
  const Cut cut = GENERATE(Cut::answer, Cut::before_server);
  CAPTURE(name_of(cut));
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = bench.schema, .max_connections = 1}};
  Ids ids;
  const IdempotentConsumer pay{"pay.v1", store, publishing_handler(bench, ids, 1),
                               Runtime{.sleeper = [](auto, const std::stop_token&) {}}};
  proxy.arm({.cut = cut, .word = "COMMIT"});
  const auto outcome = pay(Payment{});
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(ids == Ids(cut == Cut::answer ? 1 : 2, promised_id(Key{"", "pay.v1", "p-1"}, 0)));
  CHECK(ids_in_outbox(bench) == Ids{promised_id(Key{"", "pay.v1", "p-1"}, 0)});
}

TEST_CASE("a commit tells who listens on the schema's channel, a rollback nobody", "[outbox]") {
  PublishingBench bench;
  const std::unique_ptr<PGconn, decltype(&PQfinish)> listener{PQconnectdb(server_dsn().c_str()), &PQfinish};
  const auto run = [&](const std::string& sql) {
    const std::unique_ptr<PGresult, decltype(&PQclear)> result{PQexec(listener.get(), sql.c_str()), &PQclear};
    return PQresultStatus(result.get());
  };
  const std::string channel = postgres::detail::outbox_channel(bench.schema);
  REQUIRE(run("LISTEN " + postgres::detail::identifier(channel)) == PGRES_COMMAND_OK);
  const auto told = [&] {
    CHECK(run("SELECT 1") == PGRES_TUPLES_OK);
    int count = 0;
    while (PGnotify* const notice = PQnotifies(listener.get())) {
      CHECK(notice->relname == channel);
      PQfreemem(notice);
      ++count;
    }
    return count;
  };
  Ids ids;
  const IdempotentConsumer pay{"pay.v1", bench.store, [&](postgres::Transaction& tx, const Payment& p) {
                                 publishing_handler(bench, ids, 3)(tx, p);
                                 if (p.id == "fails") throw TransientError{"down"};
                               }};
  CHECK(pay(Payment{.id = "fails"}).status == Status::deferred);
  CHECK(told() == 0);
  CHECK(pay(Payment{}).status == Status::applied);
  CHECK(told() == 1);  // the server folds what is equal
}

TEST_CASE("the channel of a schema is a name that the server takes whole", "[outbox]") {
  using postgres::detail::outbox_channel;
  CHECK(outbox_channel("idem") == "idem_outbox_idem");
  CHECK(outbox_channel(std::string(51, 's')) == "idem_outbox_" + std::string(51, 's'));
  CHECK(outbox_channel(std::string(52, 's')).size() <= 63);
  CHECK(outbox_channel(std::string(52, 's')) != outbox_channel(std::string(53, 's')));
  CHECK(outbox_channel("caf\xC3\xA9").find('\xC3') == std::string::npos);
}

TEST_CASE("a role that may insert into the outbox and read it publishes", "[outbox]") {
  PublishingBench bench;
  const std::string role = unique_schema("idem_publisher");
  execute("CREATE ROLE " + role + " LOGIN; GRANT USAGE ON SCHEMA " + bench.schema + " TO " + role +
          "; GRANT SELECT, INSERT ON " + bench.schema + ".keys, " + bench.schema + ".outbox TO " + role +
          "; GRANT SELECT ON " + bench.schema + ".schema_info TO " + role);
  {
    PostgresStore store{"user=" + role, {.schema = bench.schema}};
    const IdempotentConsumer pay{
        "pay.v1", store, [&](postgres::Transaction& tx, const Payment&) { enqueue(tx, {.topic = "t"}); }};
    const auto outcome = pay(Payment{});
    CAPTURE(outcome.failure ? outcome.failure->message : "");
    CHECK(outcome.status == Status::applied);
  }
  execute("DROP OWNED BY " + role + "; DROP ROLE " + role);
  CHECK(ids_in_outbox(bench).size() == 1);
}

TEST_CASE("row security keeps each tenant's messages apart", "[outbox]") {
  PublishingBench bench;
  const std::string role = unique_schema("idem_publisher");
  execute("CREATE ROLE " + role + " LOGIN; GRANT USAGE ON SCHEMA " + bench.schema + " TO " + role +
          "; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA " + bench.schema + " TO " + role +
          "; ALTER TABLE " + bench.schema + ".outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON " +
          bench.schema + ".outbox USING (tenant = current_setting('app.tenant', true))");
  {
    PostgresStore store{"user=" + role, {.schema = bench.schema, .tenant_setting = "app.tenant"}};
    const IdempotentConsumer pay{
        "pay.v1", store, [&](postgres::Transaction& tx, const Payment& p) {
          enqueue(tx, {.topic = "t", .id = "same"});
          CHECK(postgres::exec(tx, "SELECT DISTINCT tenant FROM " + bench.schema + ".outbox")[0][0].c_str() ==
                p.tenant);
        }};
    CHECK(pay(Payment{.tenant = "a"}).status == Status::applied);
    CHECK(pay(Payment{.tenant = "b"}).status == Status::applied);
  }
  execute("DROP OWNED BY " + role + "; DROP ROLE " + role);
  CHECK(ids_in_outbox(bench) == Ids{"same", "same"});
}

}  // namespace idem::tests::publishing
