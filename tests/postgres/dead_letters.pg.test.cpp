// SPDX-License-Identifier: MIT
#include <idem/postgres/dead_letters.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "conformance/dead_letters.hpp"
#include "conformance/postgres_bench.hpp"
#include "postgres/dead_letters_bench.hpp"
#include "postgres/playground.hpp"
#include "support/catch.hpp"
#include "support/fault_proxy.hpp"
#include "support/server.hpp"

using namespace std::chrono_literals;

namespace idem::tests::mourning {

namespace {

using postgres::ClosedAs;
using postgres::DeadLetterFilter;
using postgres::DeadLetters;
using postgres::LetterState;
using postgres::PayloadKept;
using postgres::StoredDeadLetter;

constexpr const char* marker = "4929-4242-secret";

struct PostgresLettersBench : PostgresBench {
  DeadLetters dead{store};
  [[nodiscard]] DeadLetters& sink() noexcept { return dead; }
  [[nodiscard]] std::vector<DeadLetterRecord> letters() {
    std::vector<DeadLetterRecord> records;
    for (const StoredDeadLetter& letter : dead.list()) records.push_back(letter);
    return records;
  }
};

}  // namespace

TEST_CASE("postgres::DeadLetters: dead letters", "[postgres][dead_letters]") {
  show_all(dying::dead_letter_behaviours<PostgresLettersBench>());
}

TEST_CASE("a payload is kept only if it is asked for", "[postgres][dead_letters]") {
  Morgue morgue{{}};
  const auto ship = morgue.ship();
  const auto outcome = ship(Parcel{.id = "e-1", .text = marker});
  CHECK(outcome.action == Action::acknowledge);
  CHECK_FALSE(contains(outcome.failure.value().message, marker));
  const auto letters = morgue.dead().list();
  REQUIRE(letters.size() == 1);
  CHECK(letters[0].payload_kept == PayloadKept::none);
  CHECK_FALSE(morgue.dead().payload(letters[0].id));
  CHECK(contains(morgue.all("to_jsonb(dead_letters)"), "it is broken"));
  CHECK_FALSE(contains(morgue.all("to_jsonb(dead_letters)"), marker));
  CHECK(morgue.value("SELECT count(payload) FROM " + morgue.letters()) == "0");
}

TEST_CASE("a kept payload is whole, and in no list", "[postgres][dead_letters]") {
  Morgue morgue;
  const std::string bytes{"e-1|\0\xFF'\\|", 9};
  const auto ship = morgue.ship();
  CHECK(ship(Parcel{.id = "e-1", .bytes = bytes}).action == Action::acknowledge);
  const auto letters = morgue.dead().list();
  REQUIRE(letters.size() == 1);
  CHECK(letters[0].payload_kept == PayloadKept::original);
  CHECK_FALSE(letters[0].payload);
  CHECK(morgue.dead().payload(letters[0].id) == bytes);
  CHECK_FALSE(morgue.dead().payload(letters[0].id + 1));
}

TEST_CASE("a payload goes through the redaction, and is dropped where it is too large",
          "[postgres][dead_letters]") {
  Morgue morgue{{.payload = keep,
                 .redact =
                     [](std::string_view payload, const Event& event) {
                       return event.id + ": " + std::string{payload.substr(0, 3)} + "...";
                     },
                 .max_payload = 14}};
  const auto ship = morgue.ship();
  CHECK(ship(Parcel{.id = "e-1", .text = marker}).action == Action::acknowledge);
  CHECK(ship(Parcel{.id = "a longer id", .text = marker}).action == Action::acknowledge);
  const auto letters = morgue.dead().list();
  REQUIRE(letters.size() == 2);
  CHECK(letters[0].payload_kept == PayloadKept::redacted);
  CHECK(morgue.dead().payload(letters[0].id) == "e-1: e-1...");
  CHECK(letters[1].payload_kept == PayloadKept::none);
  CHECK_FALSE(contains(morgue.all("convert_from(coalesce(payload, ''), 'UTF8')"), marker));
}

TEST_CASE("a redaction that throws keeps nothing, brings the message back, and is not quoted",
          "[postgres][dead_letters]") {
  Morgue morgue{{.payload = keep, .redact = [](std::string_view payload, const Event&) -> std::string {
                   throw std::runtime_error{"cannot read " + std::string{payload}};
                 }}};
  const auto outcome = morgue.ship()(Parcel{.id = "e-1", .text = marker});
  CHECK(outcome.status == Status::rejected);
  CHECK(outcome.action == Action::redeliver);
  CHECK(contains(outcome.failure.value().message, "redact threw"));
  CHECK_FALSE(contains(outcome.failure.value().message, marker));
  CHECK(morgue.count("dead_letters") == "0");
}

TEST_CASE(
    "an original payload that was kept is not lost to a sink that redacts, and a redacted one gives way",
    "[postgres][dead_letters]") {
  Morgue morgue{{}};
  DeadLetters redacting{morgue.store(),
                        {.payload = keep, .redact = [](std::string_view, const Event&) { return "***"; }}};
  DeadLetters keeping{morgue.store(), {.payload = keep}};
  const auto die_into = [&](DeadLetters& dead) {
    const IdempotentConsumer ship{"ship.v1", morgue.store(), morgue.handler(), dead};
    CHECK(ship(Parcel{.id = "e-1"}).action == Action::acknowledge);
    return morgue.all("payload_kept || ' ' || coalesce(convert_from(payload, 'UTF8'), '')");
  };
  CHECK(die_into(morgue.dead()) == "none ");
  CHECK(die_into(redacting) == "redacted ***");
  CHECK(die_into(keeping) == "original e-1||");
  CHECK(die_into(redacting) == "original e-1||");
  CHECK(die_into(morgue.dead()) == "original e-1||");
  CHECK(morgue.all("recorded") == "5");
}

TEST_CASE("what cannot be decoded is recorded by its bytes", "[postgres][dead_letters]") {
  Morgue morgue;
  for (const char* reason : {"no JSON", "still no JSON"})
    morgue.dead().record_undecodable("ship.v1", "{", reason, "acme");
  morgue.dead().record_undecodable("ship.v1", "[", "no JSON");
  const auto letters = morgue.dead().list({.event_id = ""});
  REQUIRE(letters.size() == 2);
  CHECK(letters[0].tenant == "acme");
  CHECK(letters[0].recorded == 2);
  CHECK(letters[0].first.message == "no JSON");
  CHECK(letters[0].last.message == "still no JSON");
  CHECK(letters[0].last.code == code::event_of_failed);
  CHECK(letters[0].fingerprint == fingerprint_bytes("{"));
  CHECK(morgue.dead().payload(letters[0].id) == "{");
  CHECK_THROWS_AS(morgue.dead().record_undecodable(" ", "{", "no"), InvalidKey);
  CHECK_THROWS_AS(morgue.dead().record_undecodable("ship.v1", "{", "no", std::string(129, 't')), InvalidKey);
  DeadLetters discreet{morgue.store()};
  discreet.record_undecodable("ship.v1", marker, "no");
  CHECK(discreet.list().back().payload_kept == PayloadKept::none);
}

TEST_CASE("a record that was closed is open again when its event dies again, and says so",
          "[postgres][dead_letters]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  CHECK(morgue.dead().discard(DeadLetterFilter{.event_id = "e-1"}, "a test") == 1);
  CHECK(morgue.dead().list().empty());
  morgue.kill({"e-1"});
  const auto letters = morgue.dead().list();
  REQUIRE(letters.size() == 1);
  CHECK(letters[0].reopened == 1);
  CHECK(letters[0].recorded == 2);
  CHECK_FALSE(letters[0].closed_at);
  CHECK_FALSE(letters[0].closed_as);
  CHECK(letters[0].closed_reason.empty());
  morgue.kill({"e-1"});
  CHECK(morgue.dead().list().at(0).reopened == 1);
}

TEST_CASE("a recording whose answer is lost on a used connection is repeated, and counts once",
          "[postgres][dead_letters]") {
  const Cut cut = GENERATE(Cut::before_server, Cut::inside, Cut::answer, Cut::inside_answer);
  CAPTURE(name_of(cut));
  Morgue morgue;
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  const IdempotentConsumer ship{"ship.v1", morgue.store(), morgue.handler(), dead};
  CHECK(ship(Parcel{.id = "e-0"}).action == Action::acknowledge);
  proxy.arm({.cut = cut, .word = "last_token", .bytes = 20});
  CHECK(ship(Parcel{.id = "e-1"}).action == Action::acknowledge);
  CHECK(proxy.fired() == 1);
  CHECK(morgue.all("recorded") == "1,1");
  CHECK(ship(Parcel{.id = "e-1"}).action == Action::acknowledge);
  CHECK(morgue.all("recorded") == "1,2");
}

TEST_CASE("a recording of which nobody can say whether it is committed brings the message back",
          "[postgres][dead_letters]") {
  const Cut cut = GENERATE(Cut::before_server, Cut::answer);
  CAPTURE(name_of(cut));
  Morgue morgue;
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  const IdempotentConsumer ship{"ship.v1", morgue.store(), morgue.handler(), dead};
  proxy.arm({.cut = cut, .word = "last_token"});  // on its first connection: it is not repeated
  const auto lost = ship(Parcel{.id = "e-1"});
  CHECK(proxy.fired() == 1);
  CHECK(lost.status == Status::rejected);
  CHECK(lost.action == Action::redeliver);
  CHECK(contains(lost.failure.value().message, "it is broken"));
  CHECK(contains(lost.failure.value().message, "could not be recorded"));
  CHECK(morgue.effect_ids().empty());
  CHECK(ship(Parcel{.id = "e-1", .delivery_count = 2}).action == Action::acknowledge);
  CHECK(morgue.all("recorded") == (cut == Cut::answer ? "2" : "1"));
  CHECK(morgue.all("delivery_count") == "2");
}

TEST_CASE("a recording whose session is ended while it waits brings the message back",
          "[postgres][dead_letters]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  pqxx::connection connection{server_dsn()};
  pqxx::work holder{connection};
  holder.exec("SELECT 1 FROM " + morgue.letters() + " FOR UPDATE");
  DeadLetters dead{morgue.store()};
  const IdempotentConsumer ship{"ship.v1", morgue.store(), morgue.handler(), dead};
  Action action = Action::acknowledge;
  std::thread worker{[&] { action = ship(Parcel{.id = "e-1", .text = "text of e-1"}).action; }};
  const int holder_pid = pid_of(holder);
  await_waiter_behind(holder_pid);
  terminate(std::stoi(query_value("SELECT pid FROM pg_stat_activity WHERE " + std::to_string(holder_pid) +
                                  " = ANY(pg_blocking_pids(pid))")));
  worker.join();
  CHECK(action == Action::redeliver);
  holder.abort();
  CHECK(morgue.all("recorded") == "1");
  CHECK(ship(Parcel{.id = "e-1", .text = "text of e-1"}).action == Action::acknowledge);
  CHECK(morgue.all("recorded") == "2");
}

TEST_CASE("a schema without the table stops the worker", "[postgres][dead_letters]") {
  Morgue morgue;
  execute("DROP TABLE " + morgue.letters());
  const auto ship = morgue.ship();
  CHECK(contains(refusal([&] { return ship(Parcel{.id = "e-1"}); }), "create_schema()"));
  morgue.mend();
  CHECK(ship(Parcel{.id = "e-1"}).status == Status::applied);  // nothing in the message path reads the table
  CHECK_THROWS_AS(morgue.dead().list(), ConfigurationError);
}

TEST_CASE("a database of another encoding records what it can", "[postgres][dead_letters]") {
  const Database latin{"ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"};
  Morgue morgue{{.payload = keep}, latin.dsn()};
  morgue.why = [](const std::string&) { return std::optional<std::string>{"caf\u00E9 5 \u20AC"}; };
  const auto ship = morgue.ship();
  CHECK(ship(Parcel{.id = "caf\u00E9"}).action == Action::acknowledge);
  const auto letters = morgue.dead().list();
  REQUIRE(letters.size() == 1);
  CHECK(letters[0].event_id == "caf\u00E9");
  CHECK(letters[0].first.message == "caf?? 5 ???");
  CHECK(morgue.dead().payload(letters[0].id) == "caf\u00E9||");
}

TEST_CASE("letters are found by what is set in the filter, oldest first", "[postgres][dead_letters]") {
  Morgue morgue;
  const auto ship = morgue.ship();
  const IdempotentConsumer bill{"bill.v1", morgue.store(),
                                [](postgres::Transaction&, const Parcel&) { throw TransientError{"down"}; },
                                Redeliver{Immediate{} | MaxAttempts{1}}, morgue.dead()};
  CHECK(ship(Parcel{.id = "e-1", .tenant = "a"}).action == Action::acknowledge);
  CHECK(ship(Parcel{.id = "e-2", .tenant = "b"}).action == Action::acknowledge);
  CHECK(bill(Parcel{.id = "e-1", .tenant = "b"}).action == Action::acknowledge);
  morgue.mend();
  CHECK(ship(Parcel{.id = "e-3"}).status == Status::applied);
  CHECK(ship(Parcel{.id = "e-3", .text = "else"}).action == Action::acknowledge);
  CHECK(morgue.dead().discard(DeadLetterFilter{.consumer = "ship.v1", .event_id = "e-2"}, "known") == 1);
  execute("UPDATE " + morgue.letters() + " SET last_at = '2001-01-01T00:00:00Z' WHERE consumer = 'bill.v1'");
  const DeadLetterRecord::Time y2002{std::chrono::seconds{1'009'843'200}};

  const auto found = [&](const DeadLetterFilter& filter, std::size_t limit = 100) {
    std::string ids;
    for (const auto& letter : morgue.dead().list(filter, limit))
      ids += letter.consumer.substr(0, 1) + letter.event_id.substr(2) + letter.tenant + ' ';
    return ids;
  };
  CHECK(found({}) == "s1a b1b s3 ");
  CHECK(found({}, 2) == "s1a b1b ");
  CHECK(found({.tenant = "b"}) == "b1b ");
  CHECK(found({.tenant = ""}) == "s3 ");
  CHECK(found({.consumer = "ship.v1"}) == "s1a s3 ");
  CHECK(found({.event_id = "e-1"}) == "s1a b1b ");
  CHECK(found({.kind = ErrorClass::transient}) == "b1b ");
  CHECK(found({.code = std::string{code::mismatch}}) == "s3 ");
  CHECK(found({.code = ""}) == "s1a b1b ");
  CHECK(found({.since = y2002}) == "s1a s3 ");
  CHECK(found({.until = y2002}) == "b1b ");
  CHECK(found({.state = LetterState::closed}) == "s2b ");
  CHECK(found({.state = LetterState::any}) == "s1a s2b b1b s3 ");
  CHECK(found({.tenant = "a' OR true --"}).empty());
  for (const std::string& value : {std::string{"a\0b", 3}, std::string{"\xFF"}})
    CHECK(contains(refused([&] { return found({.code = value}); }), "DeadLetterFilter::code"));

  const auto whole = morgue.dead().list({.state = LetterState::closed}).at(0);
  CHECK(whole.fingerprint == event_of(Parcel{.id = "e-2"}).fingerprint);
  CHECK(whole.ordering_key == "lane of e-2");
  CHECK((whole.occurred_at == event_of(Parcel{.id = "e-2"}).occurred_at));
  CHECK(whole.closed_as == ClosedAs::discarded);
  CHECK(whole.closed_reason == "known");
  CHECK((whole.closed_at.value() >= whole.last_at));
  const auto now = std::chrono::system_clock::now();
  CHECK((whole.first_at > now - 1h && whole.first_at < now + 1h));
}

TEST_CASE("letters are counted by what they died of", "[postgres][dead_letters]") {
  Morgue morgue;
  morgue.why = [](const std::string& id) {
    return std::optional<std::string>{id == "odd" ? "odd" : "no stock\nof " + id};
  };
  const auto ship = morgue.ship();
  for (const char* id : {"odd", "e-1", "e-2", "e-3"})
    CHECK(ship(Parcel{.id = id}).action == Action::acknowledge);
  const auto groups = morgue.dead().groups({.consumer = "ship.v1"});
  REQUIRE(groups.size() == 2);
  const auto letters = morgue.dead().list();
  CHECK(groups[0].consumer == "ship.v1");
  CHECK(groups[0].kind == ErrorClass::permanent);
  CHECK(groups[0].code.empty());
  CHECK(groups[0].message == "no stock");
  CHECK(groups[0].count == 3);
  CHECK(groups[0].example == letters.at(1).id);
  CHECK((groups[0].oldest == letters.at(1).first_at));
  CHECK((groups[0].newest == letters.at(3).last_at));
  CHECK(groups[1].message == "odd");
  CHECK(morgue.dead().groups({}, 1).size() == 1);
  CHECK(morgue.dead().groups({.consumer = "nobody.v1"}).empty());
}

TEST_CASE("discard closes what agrees, for a reason", "[postgres][dead_letters]") {
  Morgue morgue;
  std::vector<std::string> ids;
  for (int i = 0; i < 130; ++i) ids.push_back("e-" + std::to_string(i));
  morgue.kill(ids);
  CHECK(
      contains(refused([&] { return morgue.dead().discard(DeadLetterFilter{}, "why"); }), "nothing is set"));
  CHECK(contains(
      refused([&] { return morgue.dead().discard(DeadLetterFilter{.state = LetterState::any}, "why"); }),
      "nothing is set"));
  const DeadLetterFilter ours{.consumer = "ship.v1"};
  for (const char* blank : {"", " \n"})
    CHECK(contains(refused([&] { return morgue.dead().discard(ours, blank); }), "reason is blank"));
  CHECK(morgue.value("SELECT count(closed_at) FROM " + morgue.letters()) == "0");

  const auto some = morgue.dead().list({}, 3);
  const std::int64_t chosen[] = {some[0].id, some[1].id, 999'999};
  CHECK(refused([&] { return morgue.dead().discard(chosen, " "); }) != "");
  CHECK(morgue.dead().discard(chosen, "chosen '\\") == 2);
  CHECK(morgue.dead().discard(chosen, "again") == 0);
  CHECK(morgue.dead().discard(ours, "all the rest") == 128);
  CHECK(morgue.dead().discard(ours, "once more") == 0);
  CHECK(morgue.value("SELECT count(*) FROM " + morgue.letters() +
                     " WHERE closed_as = 'discarded' AND closed_reason = 'chosen ''\\'") == "2");
  CHECK(morgue.count("dead_letters") == "130");
}

TEST_CASE("discard passes over a row that somebody holds, and closes the others",
          "[postgres][dead_letters]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2", "e-3"});
  pqxx::connection connection{server_dsn()};
  pqxx::work holder{connection};
  holder.exec("SELECT 1 FROM " + morgue.letters() + " WHERE event_id = 'e-2' FOR UPDATE");
  CHECK(morgue.dead().discard(DeadLetterFilter{.consumer = "ship.v1"}, "why") == 2);
  holder.abort();
  CHECK(morgue.dead().list().at(0).event_id == "e-2");
}

TEST_CASE("a discard whose answer is lost tells the truth when it is repeated", "[postgres][dead_letters]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  CHECK(dead.list().size() == 2);
  proxy.arm({.cut = Cut::answer, .word = "closed_reason"});
  CHECK(dead.discard(DeadLetterFilter{.consumer = "ship.v1"}, "why") == 2);
  CHECK(proxy.fired() == 1);
}

TEST_CASE("a worker's role records, and row security holds it to its tenant", "[postgres][dead_letters]") {
  Morgue morgue;
  const Role role;
  role.may_work_in(morgue);
  execute("ALTER TABLE " + morgue.letters() + " ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON " +
          morgue.letters() + " USING (tenant = current_setting('app.tenant', true))");
  auto options = morgue.options();
  options.tenant_setting = "app.tenant";
  PostgresStore store{role.dsn(), options};
  DeadLetters dead{store};
  const IdempotentConsumer ship{
      "ship.v1", store, [](postgres::Transaction&, const Parcel&) { throw PermanentError{"no"}; }, dead};
  for (int i = 0; i < 2; ++i)
    for (const char* tenant : {"a", "b"})
      CHECK(ship(Parcel{.id = "e-1", .tenant = tenant}).action == Action::acknowledge);
  CHECK(morgue.all("tenant || recorded") == "a2,b2");
  CHECK(dead.list({.tenant = "a"}).size() == 1);
  CHECK(dead.list().empty());
  CHECK(dead.discard(DeadLetterFilter{.tenant = "b"}, "why") == 1);
  CHECK(morgue.dead().list({.state = LetterState::closed}).at(0).tenant == "b");
}

}  // namespace idem::tests::mourning
