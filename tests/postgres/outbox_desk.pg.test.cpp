// SPDX-License-Identifier: MIT
#include <idem/postgres/outbox_desk.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "postgres/relay_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::relaying {

namespace {

using postgres::Outbox;
using postgres::OutboxEntry;
using postgres::OutboxState;

/// One message in each state, one of them sent.
struct Desk : Tables {
  Desk() {
    insert("waiting", "k");
    insert("parked", "l", "clock_timestamp() + interval '1 hour'");
    insert("sending", "m");
    insert("dead", "k");
    insert("sent", "k");
    change("attempts = 2, last_error = 'busy'", "id = 'parked'");
    change("claimed_by = gen_random_uuid(), claimed_until = clock_timestamp() + interval '1 hour'",
           "id = 'sending'");
    change("dead_at = clock_timestamp(), attempts = 5, last_error = 'no topic'", "id = 'dead'");
    change("sent_at = clock_timestamp()", "id = 'sent'");
  }
  Outbox outbox{store};

  [[nodiscard]] std::string ids(const postgres::OutboxFilter& filter, std::size_t limit = 100) {
    std::string ids;
    for (const OutboxEntry& entry : outbox.list(filter, limit)) ids += entry.id + " ";
    return ids;
  }
};

}  // namespace

TEST_CASE("the outbox lists what is not sent, each with its state, and without its payload") {
  Desk desk;
  CHECK(desk.ids({}) == "waiting parked sending dead ");
  CHECK(desk.ids({}, 2) == "waiting parked ");
  CHECK(desk.ids({.state = OutboxState::waiting}) == "waiting ");
  CHECK(desk.ids({.state = OutboxState::parked}) == "parked ");
  CHECK(desk.ids({.state = OutboxState::sending}) == "sending ");
  CHECK(desk.ids({.state = OutboxState::dead}) == "dead ");
  CHECK(desk.ids({.key = "k"}) == "waiting dead ");
  CHECK(desk.ids({.topic = "paid", .tenant = "acme", .id = "dead"}) == "dead ");
  CHECK(desk.ids({.tenant = "other"}).empty());
  CHECK(desk.ids({.topic = "\xC3\xA9"}).empty());

  const OutboxEntry dead = desk.outbox.list({.state = OutboxState::dead}).at(0);
  CHECK(dead.state == OutboxState::dead);
  CHECK(dead.topic == "paid");
  CHECK(dead.key == "k");
  CHECK(dead.tenant == "acme");
  CHECK(dead.consumer == "pay.v1");
  CHECK(dead.event_id == "e-1");
  CHECK(dead.attempts == 5);
  CHECK(dead.last_error == "no topic");
  REQUIRE(dead.dead_at);
  CHECK(*dead.dead_at >= dead.enqueued_at);
  const OutboxEntry parked = desk.outbox.list({.state = OutboxState::parked}).at(0);
  CHECK(std::string{to_string(parked.state)} == "parked");
  CHECK((parked.due_at - parked.enqueued_at > 59min));
  CHECK_FALSE(parked.dead_at);
}

TEST_CASE("retry makes dead messages wait again, as new, and parked ones due, and tells the relays") {
  Desk desk;
  pqxx::connection connection{server_dsn()};
  const auto ask = [&connection](const std::string& sql) { pqxx::nontransaction{connection}.exec(sql); };
  ask("LISTEN " + postgres::detail::identifier(postgres::detail::outbox_channel(desk.schema)));
  CHECK(desk.outbox.retry({.topic = "paid"}) == 2);
  CHECK(desk.told() == "waiting:waiting0 parked:waiting2 sending:claimed0 dead:waiting0 sent:sent0");
  CHECK(desk.of("dead", "last_error") == "no topic");
  ask("SELECT 1");
  CHECK(connection.get_notifs() == 1);
  CHECK(desk.outbox.retry({.topic = "paid"}) == 0);
}

TEST_CASE("retry takes those that agree with the filter") {
  Desk desk;
  CHECK(desk.outbox.retry({.state = OutboxState::dead, .topic = "other"}) == 0);
  CHECK(desk.outbox.retry({.state = OutboxState::dead}) == 1);
  CHECK(desk.outbox.retry({.key = "l"}) == 1);
}

TEST_CASE("retry goes through any number of messages") {
  Desk desk;
  execute(
      "INSERT INTO " + desk.schema +
      ".outbox (id, tenant, consumer, event_id, topic, key, payload, dead_at, attempts) SELECT 'n' || i, '', 'c', "
      "'e', 'many', '', '', clock_timestamp(), 3 FROM generate_series(1, 2500) i");
  CHECK(desk.outbox.retry({.topic = "many"}) == 2500);
  CHECK(query_value("SELECT count(*) FROM " + desk.schema +
                    ".outbox WHERE topic = 'many' AND dead_at IS NULL AND attempts = 0") == "2500");
}

TEST_CASE("a filter that is empty, or asks for what is on its way, or that no message can meet, is refused") {
  Desk desk;
  CHECK_THROWS_AS(desk.outbox.retry({}), std::invalid_argument);
  CHECK_THROWS_AS(desk.outbox.retry({.state = OutboxState::waiting}), std::invalid_argument);
  CHECK_THROWS_AS(desk.outbox.retry({.state = OutboxState::sending, .key = "m"}), std::invalid_argument);
  CHECK_THROWS_AS(desk.outbox.retry({.topic = std::string("a\0b", 3)}), std::invalid_argument);
  CHECK_THROWS_AS(desk.outbox.list({.id = "\xFF"}), std::invalid_argument);
  CHECK(desk.told() == "waiting:waiting0 parked:parked2 sending:claimed0 dead:dead5 sent:sent0");
}

}  // namespace idem::tests::relaying
