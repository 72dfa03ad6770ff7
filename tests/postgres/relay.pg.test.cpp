// SPDX-License-Identifier: MIT
#include <idem/postgres/relay.hpp>

#include <atomic>
#include <chrono>
#include <set>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <idem/consumer.hpp>
#include <idem/postgres/outbox.hpp>
#include <idem/postgres/stats.hpp>

#include "conformance/bench.hpp"
#include "postgres/relay_bench.hpp"
#include "support/catch.hpp"
#include "support/fault_proxy.hpp"

using namespace std::chrono_literals;

namespace idem::tests::relaying {

namespace {

using postgres::OutboxRelay;
using postgres::RelayOptions;
using postgres::RelayReport;

void check_report(const RelayReport& report, std::uint64_t sent, std::uint64_t failed = 0,
                  std::uint64_t dead = 0, std::uint64_t given_back = 0) {
  CHECK(report.claimed == sent + failed + dead + given_back);
  CHECK(report.sent == sent);
  CHECK(report.failed == failed);
  CHECK(report.dead == dead);
  CHECK(report.given_back == given_back);
}

using Batch = std::span<const Outgoing>;

}  // namespace

TEST_CASE("a message is handed over as it was enqueued, and is noted as sent") {
  Tables tables;
  const OutboxMessage given{.topic = "paid \xC3\xA9",
                            .key = "k'\\\xC3\xA9",
                            .payload = std::string("\0\xFF bytes", 8),
                            .headers = {{"a", ""}, {"b\"{,}", "\\ \xC3\xA9"}}};
  std::string id;
  const IdempotentConsumer pay{"pay.v1", tables.store, [&](postgres::Transaction& tx, const Payment&) {
                                 id = enqueue(tx, given);
                                 enqueue(tx, {.topic = "t"});
                               }};
  REQUIRE(pay(Payment{.id = "p-1", .tenant = "acme"}).status == Status::applied);
  std::vector<Outgoing> taken;
  OutboxRelay relay{tables.store, [&](const Outgoing& outgoing) { taken.push_back(outgoing); }};
  check_report(relay.run_once(), 2);
  REQUIRE(taken.size() == 2);
  const Outgoing& out = taken.front().message.key.empty() ? taken.back() : taken.front();
  CHECK(out.message.id == id);
  CHECK(out.message.topic == given.topic);
  CHECK(out.message.key == given.key);
  CHECK(out.message.payload == given.payload);
  CHECK(out.message.headers == given.headers);
  CHECK(out.attempts == 0);
  CHECK(out.tenant == "acme");
  CHECK(out.consumer == "pay.v1");
  CHECK(out.event_id == "p-1");
  CHECK((std::chrono::abs(std::chrono::system_clock::now() - out.enqueued_at) < 10min));
  CHECK(tables.of(id, "sent_at >= enqueued_at AND claimed_by IS NULL AND claimed_until IS NULL") == "t");
  check_report(relay.run_once(), 0);
  CHECK(taken.size() == 2);
}

TEST_CASE("a message with a lower number that is committed later is sent") {
  const std::string late_key = GENERATE("", "k");
  Tables tables;
  Broker broker;
  OutboxRelay relay{tables.store, broker.taking()};
  pqxx::connection connection{server_dsn()};
  pqxx::work late{connection};
  late.exec(tables.insert_sql("late", late_key));
  tables.insert("early", late_key);
  check_report(relay.run_once(), 1);
  late.commit();
  CHECK(tables.of("late", "seq") < tables.of("early", "seq"));
  check_report(relay.run_once(), 1);
  CHECK(broker.taken() == Ids{"early", "late"});
}

TEST_CASE(
    "while a message is in flight none of its key is sent, also if one with a lower number is committed") {
  Tables tables;
  Broker other_broker;
  pqxx::connection connection{server_dsn()};
  pqxx::work late{connection};
  late.exec(tables.insert_sql("late", "k"));
  tables.insert("early", "k");
  OutboxRelay other{tables.store, other_broker.taking()};
  OutboxRelay relay{tables.store, [&](const Outgoing& outgoing) {
                      CHECK(outgoing.message.id == "early");
                      late.commit();
                      tables.insert("next", "k");
                      tables.insert("else", "other");
                      check_report(other.run_once(), 1);
                    }};
  check_report(relay.run_once(), 1);
  CHECK(other_broker.taken() == Ids{"else"});
  check_report(other.run_once(), 2);
  CHECK(other_broker.taken() == Ids{"else", "late", "next"});
}

TEST_CASE("relays claim one after another: only one of two that come at once gets a key") {
  Tables tables;
  for (const char* id : {"1", "2", "3"}) tables.insert(id, "k");
  pqxx::connection connection{server_dsn()};
  pqxx::work claiming{connection};
  claiming.exec("SELECT pg_advisory_xact_lock(hashtextextended('" + tables.schema + "', 1768186223))");
  std::atomic<int> took{0};
  std::atomic<int> inside{0};
  const auto look = [&] {
    OutboxRelay relay{tables.store, [&](const Outgoing&) {
                        ++inside;
                        until([&] { return took > 0; });  // the other one has answered, and holds nothing
                      }};
    if (relay.run_once().claimed == 0) ++took;
  };
  std::thread one{look};
  std::thread two{look};
  until([&] {
    return query_value(
               "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND application_name = '" +
               tables.schema + "'") == "2";
  });
  claiming.commit();
  one.join();
  two.join();
  CHECK(took == 1);
  CHECK(inside == 3);
  CHECK(tables.told() == "1:sent0 2:sent0 3:sent0");
}

TEST_CASE("of a message that fails only its own key waits; the rest is sent") {
  Tables tables;
  Broker broker;
  tables.insert("bad", "k");
  for (const char* id : {"k2", "k3"}) tables.insert(id, "k");
  tables.insert("other", "l");
  tables.insert("free-1");
  tables.insert("free-2");
  OutboxRelay relay{tables.store, broker.refusing({"bad"}), hourly};
  check_report(relay.run_once(), 3, 1, 0, 2);
  CHECK(tables.told() == "bad:parked1 k2:waiting0 k3:waiting0 other:sent0 free-1:sent0 free-2:sent0");
  CHECK(tables.of("bad", "last_error") == "refused");
  tables.insert("free-3");
  check_report(relay.run_once(), 1);
  check_report(relay.run_once(), 0);
  tables.change("due_at = clock_timestamp()", "id = 'bad'");
  OutboxRelay mended{tables.store, broker.taking()};
  check_report(mended.run_once(), 3);
  const Ids taken = broker.taken();
  CHECK(Ids(taken.end() - 3, taken.end()) == Ids{"bad", "k2", "k3"});
}

TEST_CASE("messages of a key go in order, some with one claim, as long as they succeed") {
  Tables tables;
  Broker broker;
  for (int i = 0; i < 8; ++i) tables.insert(std::to_string(i), "k");
  OutboxRelay relay{tables.store, broker.refusing({"4"}), hourly, RelayOptions{.per_key = 6}};
  check_report(relay.run_once(), 4, 1, 0, 1);
  CHECK(broker.taken() == Ids{"0", "1", "2", "3", "4"});
  CHECK(tables.of("5", "claimed_by IS NULL AND attempts = 0") == "t");
  tables.change("due_at = clock_timestamp()", "id = '4'");
  tables.change("due_at = clock_timestamp() + interval '1 hour'", "id = '6'");
  OutboxRelay mended{tables.store, broker.taking()};
  check_report(mended.run_once(), 2);
  CHECK(tables.told() == "0:sent0 1:sent0 2:sent0 3:sent0 4:sent1 5:sent0 6:parked0 7:waiting0");
}

TEST_CASE("a message that failed for the last time is dead, and its key goes on without it") {
  Tables tables;
  Broker broker;
  tables.insert("bad", "k");
  tables.insert("next", "k");
  OutboxRelay relay{tables.store, broker.refusing({"bad"}), Immediate{} | MaxAttempts{3}};
  check_report(relay.run_once(), 0, 1, 0, 1);
  check_report(relay.run_once(), 0, 1, 0, 1);
  const RelayReport last = relay.run_once();
  check_report(last, 0, 0, 1, 1);
  CHECK(last.error == "refused");
  check_report(relay.run_once(), 1);
  check_report(relay.run_once(), 0);
  CHECK(tables.told() == "bad:dead3 next:sent0");
  CHECK(broker.taken() == Ids{"bad", "bad", "bad", "next"});
}

TEST_CASE("PermanentError makes a message dead at once") {
  Tables tables;
  tables.insert("bad", "k");
  OutboxRelay relay{tables.store, [](const Outgoing&) { throw PermanentError{"no such topic"}; }, hourly};
  check_report(relay.run_once(), 0, 0, 1);
  CHECK(tables.told() == "bad:dead1");
  CHECK(tables.of("bad", "last_error") == "no such topic");
}

TEST_CASE("how long to wait is never undercut, and the policy's delay counts where nothing is said") {
  Tables tables;
  tables.insert("a", "a");
  tables.insert("b", "b");
  tables.insert("c", "c");
  OutboxRelay relay{tables.store,
                    [](const Outgoing& outgoing) {
                      if (outgoing.message.id == "a") throw TransientError{"slow down", 3h};
                      if (outgoing.message.id == "b") throw TransientError{"never mind", 1s};
                      throw 42;
                    },
                    ConstantBackoff{2h}};
  check_report(relay.run_once(), 0, 3);
  const auto due_in = [&](const char* id) {
    return tables.of(id, "round(extract(epoch from due_at - clock_timestamp()) / 60)");
  };
  CHECK(std::stoi(due_in("a")) >= 179);
  CHECK(due_in("b") == "120");
  CHECK(due_in("c") == "120");
  CHECK(tables.of("c", "last_error") == "publish threw something that is no std::exception");
}

TEST_CASE("of an error the first line is kept, as text that fits") {
  Tables tables;
  tables.insert("a");
  tables.insert("b");
  OutboxRelay relay{tables.store,
                    [](const Outgoing& outgoing) {
                      std::string text = "x\xFF";
                      for (int i = 0; i < 400; ++i) text += "\xC3\xA9";
                      throw std::runtime_error{outgoing.message.id == "a" ? text : "first\nsecond"};
                    },
                    hourly};
  check_report(relay.run_once(), 0, 2);
  CHECK(
      tables.of(
          "a", "octet_length(last_error) BETWEEN 490 AND 500 AND last_error LIKE 'x\xEF\xBF\xBD\xC3\xA9%'") ==
      "t");
  CHECK(tables.of("b", "last_error") == "first");
}

TEST_CASE("a message that is parked for long holds up nobody, and is told apart") {
  Tables tables;
  Broker broker;
  tables.insert("parked", "k", "clock_timestamp() + interval '2 hours'");
  tables.insert("behind", "k");
  tables.insert("other", "l");
  OutboxRelay relay{tables.store, broker.taking()};
  check_report(relay.run_once(), 1);
  CHECK(broker.taken() == Ids{"other"});
  const auto stats = postgres::stats(tables.store);
  CHECK(stats.outbox.parked == 1);
  CHECK(stats.outbox.behind == 1);
  CHECK(stats.outbox.claimable == 0);
  CHECK(stats.outbox.oldest_claimable_age == 0ns);
}

TEST_CASE("a broker that is down costs no message an attempt: all are given back, and one goes first later") {
  Tables tables;
  Broker broker;
  Time time;
  for (int i = 0; i < 20; ++i) tables.insert(std::to_string(i), i % 2 == 0 ? "k" : "");
  bool down = true;
  OutboxRelay relay{tables.store,
                    [&](const Outgoing& outgoing) {
                      broker.take(outgoing);
                      if (down) throw BrokerDown{"no route", broker.taken().size() == 3 ? 10s : 0s};
                    },
                    Immediate{} | MaxAttempts{1},
                    RelayOptions{.breaker = {.first_pause = 1s, .longest_pause = 4s}},
                    time.runtime(~std::uint64_t{0})};
  const RelayReport first = relay.run_once();
  CHECK(first.broker_down);
  CHECK(first.error == "no route");
  CHECK(first.claimed == 19);  // of "k" as many as the others leave room for
  CHECK(first.given_back == first.claimed);
  CHECK(first.next_in == 1s);
  CHECK(broker.taken().size() == 1);
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox WHERE claimed_by IS NULL AND attempts = 0 AND last_error IS NULL") == "20");

  time.now += 999ms;
  const RelayReport early = relay.run_once();
  CHECK(early.broker_down);
  CHECK(early.claimed == 0);
  CHECK(early.next_in == 1ms);
  CHECK(broker.taken().size() == 1);

  time.now += 1ms;
  const RelayReport second = relay.run_once();
  CHECK(second.claimed == 1);
  CHECK(second.given_back == 1);
  CHECK(second.next_in == 2s);
  time.now += 2s;
  CHECK(relay.run_once().next_in == 10s);  // as the broker asked
  time.now += 10s;
  CHECK(relay.run_once().next_in == 4s);
  down = false;
  time.now += 4s;
  check_report(relay.run_once(), 1);
  while (relay.run_once().claimed > 0) {
  }
  CHECK(broker.taken().size() == 4 + 20);
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox WHERE sent_at IS NOT NULL AND attempts = 0") == "20");
}

TEST_CASE("run does not loop while the broker is down, and loses nothing") {
  Tables tables;
  Broker broker;
  Time time;
  std::stop_source stop;
  for (int i = 0; i < 50; ++i) tables.insert(std::to_string(i), std::to_string(i % 7));
  const auto mended = time.now + 60s;
  time.on_sleep = [&] {
    if (time.slept.size() > 100) stop.request_stop();  // in vain
  };
  int refused = 0;
  OutboxRelay relay{tables.store,
                    [&](const Outgoing& outgoing) {
                      if (time.now < mended) {
                        ++refused;
                        throw BrokerDown{"down"};
                      }
                      broker.take(outgoing);
                      if (broker.taken().size() == 50) stop.request_stop();
                    },
                    Immediate{} | MaxAttempts{1}, RelayOptions{}, time.runtime()};
  relay.run(stop.get_token());
  CHECK(refused <= 10);  // half a second, 1, 2, 4, 8, 16, 30, ...
  CHECK(time.slept.size() == static_cast<std::size_t>(refused));
  CHECK(broker.taken().size() == 50);
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox WHERE sent_at IS NOT NULL AND attempts = 0") == "50");
}

TEST_CASE("a relay that died after it published is followed by one that sends the message again, by its id") {
  Tables tables;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{Tables::with_name(proxy.dsn(), tables.schema), {.schema = tables.schema}};
  Broker broker;
  tables.insert("1", "k");
  tables.insert("2", "k");
  {
    OutboxRelay dying{store, [&](const Outgoing& outgoing) {
                        broker.take(outgoing);
                        proxy.refuse_connections(Refuse::yes);
                        proxy.cut_all();
                      }};
    CHECK_THROWS_AS(dying.run_once(), TransientError);
  }
  CHECK(tables.told() == "1:claimed0 2:claimed0");
  OutboxRelay next{tables.store, broker.taking()};
  check_report(next.run_once(), 0);
  tables.change("claimed_until = clock_timestamp()");
  check_report(next.run_once(), 2);
  CHECK(broker.taken() == Ids{"1", "2", "1", "2"});
  CHECK(tables.told() == "1:sent0 2:sent0");
}

TEST_CASE("what could not be noted when the server was away is noted later, and not sent again") {
  Tables tables;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = tables.schema}};
  Broker broker;
  tables.insert("1", "k");
  tables.insert("2", "k");
  OutboxRelay relay{store,
                    [&](const Outgoing& outgoing) {
                      broker.take(outgoing);
                      proxy.refuse_connections(Refuse::yes);
                      proxy.cut_all();
                      if (outgoing.message.id == "2") throw std::runtime_error{"refused"};
                    },
                    hourly};
  CHECK_THROWS_AS(relay.run_once(), TransientError);
  CHECK_THROWS_AS(relay.run_once(), TransientError);
  proxy.refuse_connections(Refuse::no);
  check_report(relay.run_once(), 0);
  CHECK(tables.told() == "1:sent0 2:parked1");
  CHECK(broker.taken() == Ids{"1", "2"});
}

TEST_CASE("a claim whose answer is lost is asked for again, and answers with the same messages") {
  Tables tables;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = tables.schema}};
  Broker broker;
  OutboxRelay relay{store, broker.taking(), hourly, RelayOptions{.batch = 3}};
  check_report(relay.run_once(), 0);
  for (int i = 0; i < 9; ++i) tables.insert(std::to_string(i), i < 4 ? "k" : "");

  SECTION("at once, on a new connection") {
    proxy.arm({.cut = Cut::answer, .word = "RECURSIVE"});
    check_report(relay.run_once(), 3);
  }
  SECTION("by the next call, when there is no new connection") {
    proxy.arm({.cut = Cut::answer, .word = "RECURSIVE"});
    proxy.arm({.cut = Cut::answer, .word = "RECURSIVE"});
    CHECK_THROWS_AS(relay.run_once(), TransientError);
    CHECK(broker.taken().empty());
    check_report(relay.run_once(), 3);
  }
  CHECK(query_value("SELECT count(*) FROM " + tables.schema + ".outbox WHERE claimed_by IS NOT NULL") == "0");
  while (relay.run_once().claimed > 0) {
  }
  CHECK(broker.taken().size() == 9);
  CHECK(query_value("SELECT count(*) FROM " + tables.schema + ".outbox WHERE sent_at IS NOT NULL") == "9");
}

TEST_CASE("a failure is counted once, also if the answer to its note is lost") {
  Tables tables;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = tables.schema}};
  Broker broker;
  tables.insert("bad");
  OutboxRelay relay{store, broker.refusing({"bad"}), hourly};
  proxy.arm({.cut = Cut::answer, .word = "attempts", .nth = 2});  // the claim reads them as well
  check_report(relay.run_once(), 0, 1);
  CHECK(proxy.fired() == 1);
  CHECK(tables.told() == "bad:parked1");
}

TEST_CASE("once its claim has nearly run out a relay begins no message, and gives the rest back") {
  Tables tables;
  Broker broker;
  Time time;
  for (int i = 0; i < 5; ++i) tables.insert(std::to_string(i), "k");
  OutboxRelay relay{tables.store,
                    [&](const Outgoing& outgoing) {
                      broker.take(outgoing);
                      time.now += 8s;
                    },
                    hourly, RelayOptions{.claim = 30s}, time.runtime()};
  check_report(relay.run_once(), 3, 0, 0, 2);
  CHECK(tables.told() == "0:sent0 1:sent0 2:sent0 3:waiting0 4:waiting0");
  check_report(relay.run_once(), 2);
}

TEST_CASE("a relay whose claim was taken over notes nothing of it") {
  Tables tables;
  Broker broker;
  tables.insert("1", "k");
  OutboxRelay other{tables.store, broker.taking()};
  SECTION("when the other one is done") {
    OutboxRelay slow{tables.store,
                     [&](const Outgoing&) {
                       tables.change("claimed_until = clock_timestamp()");
                       check_report(other.run_once(), 1);
                       throw PermanentError{"too late"};
                     },
                     hourly};
    check_report(slow.run_once(), 0, 0, 1);
    CHECK(tables.told() == "1:sent0");
  }
  SECTION("while the other one is at work") {
    OutboxRelay first{
        tables.store,
        [&](const Outgoing&) {
          tables.change("claimed_until = clock_timestamp()");
          std::string claimed;
          OutboxRelay second{tables.store, [&](const Outgoing&) { claimed = tables.of("1", "claimed_by"); }};
          static_cast<void>(second.run_once());
          tables.change("claimed_by = '" + claimed +
                        "', claimed_until = clock_timestamp() + interval '1 hour', sent_at = NULL");
        },
        hourly};
    check_report(first.run_once(), 1);
    CHECK(tables.told() == "1:claimed0");
  }
  CHECK(tables.of("1", "attempts = 0 AND last_error IS NULL AND dead_at IS NULL") == "t");
}

TEST_CASE("at a stop the message in flight is finished, and the rest is given back") {
  Tables tables;
  Broker broker;
  std::stop_source stop;
  for (int i = 0; i < 6; ++i) tables.insert(std::to_string(i), "k");
  OutboxRelay relay{tables.store, [&](const Outgoing& outgoing) {
                      broker.take(outgoing);
                      if (broker.taken().size() == 2) stop.request_stop();
                    }};
  SECTION("run") { CHECK_NOTHROW(relay.run(stop.get_token())); }
  SECTION("run_once") { check_report(relay.run_once(stop.get_token()), 2, 0, 0, 4); }
  CHECK(broker.taken() == Ids{"0", "1"});
  CHECK(tables.told() == "0:sent0 1:sent0 2:waiting0 3:waiting0 4:waiting0 5:waiting0");
}

TEST_CASE("run wakes for a message that is enqueued, and for a stop, however seldom it looks by itself") {
  Tables tables;
  Broker broker;
  std::atomic<int> idle{0};
  const RelayOptions seldom{.poll = 24h, .on_round = [&](const RelayReport& report) {
                              if (report.next_in > 0ns) ++idle;
                            }};
  OutboxRelay relay{tables.store, broker.taking(), hourly, seldom};
  std::jthread running{[&](const std::stop_token& stop) { relay.run(stop); }};
  const auto listening = [&] {
    return query_value("SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE application_name = '" +
                       tables.schema + "' AND query LIKE 'LISTEN%'");
  };
  until([&] { return listening() != "0"; });
  until([&] { return idle >= 2; });  // the second one after it heard that it listens
  const IdempotentConsumer pay{"pay.v1", tables.store, [&](postgres::Transaction& tx, const Payment& p) {
                                 enqueue(tx, {.topic = "paid", .id = p.id});
                               }};
  REQUIRE(pay(Payment{.id = "p-1"}).status == Status::applied);
  until([&] { return broker.taken().size() == 1; });

  INFO("a listening connection that is lost is replaced");
  const std::string lost = listening();
  execute("SELECT pg_terminate_backend(" + lost + ", 60000)");
  until([&] { return listening() != "0" && listening() != lost; });
  REQUIRE(pay(Payment{.id = "p-2"}).status == Status::applied);
  until([&] { return broker.taken().size() == 2; });

  running.request_stop();
  running.join();
  CHECK(broker.taken() == Ids{"p-1", "p-2"});
}

TEST_CASE("run sleeps until the next message is due, and no longer than it is told") {
  Tables tables;
  Broker broker;
  Time time;
  std::stop_source stop;
  tables.insert("later", "k", "clock_timestamp() + interval '90 seconds'");
  tables.insert("behind", "k");
  time.on_sleep = [&] { stop.request_stop(); };
  const Duration poll = GENERATE(as<Duration>{}, 24h, 10s);
  OutboxRelay relay{tables.store, broker.taking(), hourly, RelayOptions{.poll = poll}, time.runtime()};
  relay.run(stop.get_token());
  REQUIRE(time.slept.size() == 1);
  CHECK(time.slept[0] <= std::min<Duration>(poll, 90s));
  CHECK(time.slept[0] >= std::min<Duration>(poll, 60s));
}

TEST_CASE("run lives through the loss of its connections, in the middle of its work") {
  Tables tables;
  Broker broker;
  std::stop_source stop;
  for (int i = 0; i < 40; ++i) tables.insert(std::to_string(i), std::to_string(i % 5));
  OutboxRelay relay{tables.store,
                    [&](const Outgoing& outgoing) {
                      broker.take(outgoing);
                      if (broker.taken().size() % 10 == 0) execute(tables.cut_sql());
                      if (broker.taken().size() == 40) stop.request_stop();
                    },
                    hourly, RelayOptions{.batch = 5}};
  relay.run(stop.get_token());
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox WHERE sent_at IS NOT NULL AND attempts = 0") == "40");
  const Ids taken = broker.taken();
  CHECK(std::set<std::string>(taken.begin(), taken.end()).size() == 40);
}

TEST_CASE("run lives through a server that cannot be reached, at a growing distance") {
  Tables tables;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), {.schema = tables.schema}};
  Broker broker;
  Time time;
  std::stop_source stop;
  tables.insert("1");
  proxy.refuse_connections(Refuse::yes);
  time.on_sleep = [&] {
    if (time.slept.size() == 12) proxy.refuse_connections(Refuse::no);
    if (time.slept.size() > 12) stop.request_stop();
  };
  std::string error;
  OutboxRelay relay{store, broker.taking(), hourly,
                    RelayOptions{.on_round =
                                     [&](const RelayReport& report) {
                                       if (error.empty()) error = report.error;
                                       throw std::runtime_error{"nobody minds"};
                                     }},
                    time.runtime(~std::uint64_t{0})};
  relay.run(stop.get_token());
  CHECK(broker.taken() == Ids{"1"});
  CHECK_FALSE(error.empty());
  REQUIRE(time.slept.size() == 13);
  CHECK(time.slept[0] == 100ms);
  CHECK(time.slept[1] == 200ms);
  CHECK(time.slept[11] == 15s);
}

TEST_CASE("many may be published at once, and each has an answer of its own") {
  Tables tables;
  std::vector<std::size_t> sizes;
  for (const char* id : {"a1", "a2"}) tables.insert(id, "a");
  for (const char* id : {"b1", "b2"}) tables.insert(id, "b");
  tables.insert("c1", "c");
  tables.insert("d1");
  OutboxRelay relay{tables.store,
                    [&](Batch batch) {
                      sizes.push_back(batch.size());
                      std::vector<Published> published;
                      for (const Outgoing& outgoing : batch) {
                        if (outgoing.message.id == "b1")
                          published.push_back(Published::failed("busy", 3h));
                        else if (outgoing.message.id == "c1")
                          published.push_back(Published::dead("no topic"));
                        else
                          published.push_back(Published::sent());
                      }
                      return published;
                    },
                    hourly};
  check_report(relay.run_once(), 3, 1, 1, 1);
  CHECK(sizes == std::vector<std::size_t>{4, 1});
  CHECK(tables.told() == "a1:sent0 a2:sent0 b1:parked1 b2:waiting0 c1:dead1 d1:sent0");
  CHECK(tables.of("b1", "due_at > clock_timestamp() + interval '2 hours'") == "t");
}

TEST_CASE("a batch some of which the broker did not take any more is given back in part") {
  Tables tables;
  Time time;
  for (const char* id : {"a", "b", "c"}) tables.insert(id, id);
  OutboxRelay relay{tables.store,
                    [](Batch batch) {
                      std::vector<Published> published(batch.size(), Published::broker_down("gone", 30s));
                      published[0] = Published::sent();
                      return published;
                    },
                    hourly, RelayOptions{}, time.runtime()};
  const RelayReport report = relay.run_once();
  check_report(report, 1, 0, 0, 2);
  CHECK(report.broker_down);
  CHECK(report.next_in == 30s);
  CHECK(tables.told() == "a:sent0 b:waiting0 c:waiting0");
}

TEST_CASE("an answer for another number of messages is a failure of all, and says so") {
  Tables tables;
  tables.insert("a", "a");
  tables.insert("b", "b");
  OutboxRelay relay{tables.store, [](Batch) { return std::vector<Published>{Published::sent()}; }, hourly};
  const RelayReport report = relay.run_once();
  check_report(report, 0, 2);
  CHECK(report.error == "publish answered for 1 messages of 2: it must say of each what became of it");
  CHECK(tables.told() == "a:parked1 b:parked1");
}

TEST_CASE("where publishing many throws, each is published alone, and only the bad one suffers") {
  Tables tables;
  std::vector<std::size_t> sizes;
  for (const char* id : {"a", "b", "c"}) tables.insert(id, id);
  const bool permanent = GENERATE(true, false);
  OutboxRelay relay{tables.store,
                    [&](Batch batch) {
                      sizes.push_back(batch.size());
                      for (const Outgoing& outgoing : batch) {
                        if (outgoing.message.id != "b") continue;
                        if (permanent) throw PermanentError{"bad"};
                        throw std::runtime_error{"bad"};
                      }
                      return std::vector<Published>(batch.size(), Published::sent());
                    },
                    hourly};
  check_report(relay.run_once(), 2, permanent ? 0 : 1, permanent ? 1 : 0);
  CHECK(sizes == std::vector<std::size_t>{3, 1, 1, 1});
  CHECK(tables.told() == (permanent ? "a:sent0 b:dead1 c:sent0" : "a:sent0 b:parked1 c:sent0"));
}

TEST_CASE("ConfigurationError comes out, and no message suffers from it") {
  Tables tables;
  std::stop_source stop;
  for (const char* id : {"a", "b"}) tables.insert(id, "k");
  OutboxRelay relay{tables.store,
                    [&](const Outgoing& outgoing) {
                      if (outgoing.message.id == "b") throw ConfigurationError{"no credentials"};
                    },
                    Immediate{} | MaxAttempts{1}};
  SECTION("of publish, from run_once") { CHECK_THROWS_AS(relay.run_once(), ConfigurationError); }
  SECTION("of publish, from run") { CHECK_THROWS_AS(relay.run(stop.get_token()), ConfigurationError); }
  CHECK(tables.told() == "a:sent0 b:waiting0");
}

TEST_CASE("a relay that meets no schema says so") {
  const PostgresStore store{server_dsn(), {.schema = unique_schema("nothing")}};
  OutboxRelay relay{store, [](const Outgoing&) {}};
  CHECK_THROWS_AS(relay.run_once(), ConfigurationError);
  CHECK_THROWS_AS(relay.run({}), ConfigurationError);
}

TEST_CASE("options out of their range are refused") {
  const PostgresStore store{server_dsn()};
  const auto refuses = [&](const RelayOptions& options) {
    CHECK_THROWS_AS((OutboxRelay{store, [](const Outgoing&) {}, options}), ConfigurationError);
  };
  refuses({.batch = 0});
  refuses({.batch = 10'001});
  refuses({.per_key = 0});
  refuses({.claim = 0s});
  refuses({.poll = -1s});
  refuses({.breaker = {.first_pause = 0s}});
  refuses({.breaker = {.first_pause = 2s, .longest_pause = 1s}});
}

TEST_CASE("no key starves: claims go round, and a key that has much has no more turns than others") {
  Tables tables;
  Broker broker;
  for (int i = 0; i < 3; ++i)
    for (const char* key : {"a", "b", "c"}) tables.insert(key + std::to_string(i), key);
  tables.insert("parked", "b0", "clock_timestamp() + interval '1 hour'");
  OutboxRelay relay{tables.store, broker.taking(), hourly, RelayOptions{.batch = 1}};
  std::uint64_t sent = 0;
  for (int i = 0; i < 20; ++i) sent += relay.run_once().sent;
  CHECK(sent == 9);
  CHECK(broker.taken() == Ids{"a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"});
}

TEST_CASE("a claim ends at 16 MiB of payloads, so that memory is bounded") {
  Tables tables;
  Broker broker;
  tables.insert("large", "k");
  tables.insert("small", "l");
  tables.change("payload = convert_to(repeat('x', 16777216), 'UTF8')", "id = 'large'");
  OutboxRelay relay{tables.store, broker.taking()};
  check_report(relay.run_once(), 1);
  check_report(relay.run_once(), 1);
  CHECK(broker.taken() == Ids{"large", "small"});
}

TEST_CASE("a relay needs no right but to read the outbox, and to change what it notes there") {
  Tables tables;
  Broker broker;
  const std::string role = tables.schema;
  execute("CREATE ROLE " + role + "; GRANT USAGE ON SCHEMA " + tables.schema + " TO " + role +
          "; GRANT SELECT, " +
          "UPDATE (due_at, attempts, claimed_by, claimed_until, last_error, sent_at, dead_at) ON " +
          tables.schema + ".outbox TO " + role);
  for (const char* id : {"1", "bad", "worse", "behind"}) tables.insert(id, id[0] == 'b' ? "k" : "");
  {
    const PostgresStore store{"options='-c role=" + role + "'", {.schema = tables.schema}};
    OutboxRelay relay{store,
                      [&](const Outgoing& outgoing) {
                        if (outgoing.message.id == "worse") throw PermanentError{"no"};
                        broker.refusing({"bad"})(outgoing);
                      },
                      hourly};
    check_report(relay.run_once(), 1, 1, 1, 1);
  }
  CHECK(tables.told() == "1:sent0 bad:parked1 worse:dead1 behind:waiting0");
  execute("DROP OWNED BY " + role + "; DROP ROLE " + role);
}

}  // namespace idem::tests::relaying
