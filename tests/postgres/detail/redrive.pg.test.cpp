// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/redrive.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <latch>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "conformance/bench.hpp"
#include "postgres/dead_letters_bench.hpp"
#include "postgres/playground.hpp"
#include "support/catch.hpp"
#include "support/fault_proxy.hpp"
#include "support/rerun.hpp"
#include "support/server.hpp"

using namespace std::chrono_literals;

namespace idem::tests::mourning {

namespace {

using postgres::DeadLetterFilter;
using postgres::DeadLetters;
using postgres::DryRun;
using postgres::LetterState;
using postgres::RedriveReport;
using postgres::StoredDeadLetter;

constexpr const char* schema_variable = "IDEM_TEST_REDRIVE_SCHEMA";

/// Keeps the events it is told of.
struct Witness {
  std::vector<Event> events = {};
  std::vector<std::string> payloads = {};
  void observe(const Observation& seen) {
    if (seen.what != Observed::decided) return;
    events.push_back(seen.event);
    payloads.emplace_back(seen.event.payload);
  }
};

/// Runs this program again, for the test case "dies in a redrive".
void crash_in_redrive(const std::string& schema) {
  ::setenv(schema_variable, schema.c_str(), 1);
  run_again_until_killed("[dies_in_redrive]");
  ::unsetenv(schema_variable);
}

}  // namespace

TEST_CASE("a redrive hands over the events as they were, and closes what is done", "[redrive]") {
  Morgue morgue;
  const IdempotentConsumer mortal{"ship.v1", morgue.store(), morgue.handler(), morgue.dead()};
  const std::vector<Parcel> parcels{{.id = "e-1", .text = "a", .tenant = "t", .delivery_count = 7},
                                    {.id = "e-2", .text = "b"},
                                    {.id = "e-3", .text = "c"}};
  for (const Parcel& parcel : parcels) CHECK(mortal(parcel).action == Action::acknowledge);
  morgue.mend();
  CHECK(mortal(parcels[1]).status == Status::applied);  // somebody sent it again
  Witness witness;
  const IdempotentConsumer ship{"ship.v1", morgue.store(), morgue.handler(), morgue.dead(), witness};
  const RedriveReport report = morgue.dead().redrive(ship, {}, decoded);
  CHECK(report.applied == 2);
  CHECK(report.duplicate == 1);
  CHECK(report.failed == 0);
  CHECK(report.skipped.all() == 0);
  CHECK(report.considered() == 3);
  CHECK(morgue.effect_ids() == "e-1,e-2,e-3");
  CHECK(morgue.all("closed_as") == "redriven,redriven,redriven");
  CHECK(morgue.all("redrives || '/' || recorded") == "1/1,1/1,1/1");

  REQUIRE(witness.events.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const Event original = event_of(parcels[i]);
    const Event& again = witness.events[i];
    CHECK(again.tenant == original.tenant);
    CHECK(again.id == original.id);
    CHECK(again.fingerprint == original.fingerprint);
    CHECK(again.ordering_key == original.ordering_key);
    CHECK((again.occurred_at == original.occurred_at));
    CHECK(again.delivery_count == 1);
    CHECK(witness.payloads[i] == original.payload);
  }
  CHECK(morgue.dead().redrive(ship, {}, decoded).considered() == 0);
  CHECK(mortal(parcels[0]).status == Status::duplicate);
}

TEST_CASE("what fails again stays open with its new cause, and is recorded no second time", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  morgue.why = [](const std::string&) { return std::optional<std::string>{"still broken"}; };
  const auto ship = morgue.ship();  // its sink is the very object that redrives
  for (int i = 0; i < 2; ++i) CHECK(morgue.dead().redrive(ship, {}, decoded).failed == 1);
  auto letter = morgue.dead().list().at(0);
  CHECK(letter.recorded == 1);
  CHECK(letter.redrives == 2);
  CHECK(letter.first.message == "it is broken");
  CHECK(letter.last.message == "still broken");

  const IdempotentConsumer later{"ship.v1", morgue.store(),
                                 [](postgres::Transaction&, const Parcel&) { throw TransientError{"down"}; }};
  CHECK(morgue.dead().redrive(later, {}, decoded).failed == 1);
  letter = morgue.dead().list().at(0);
  CHECK(letter.last.kind == ErrorClass::transient);
  CHECK(letter.redrives == 3);
  CHECK_FALSE(letter.closed_at);
  CHECK(ship(parcel_of("e-1|text of e-1|")).action == Action::acknowledge);  // a delivery counts
  CHECK(morgue.dead().list().at(0).recorded == 2);
}

TEST_CASE("a mismatch that is redriven stays one", "[redrive]") {
  Morgue morgue;
  morgue.mend();
  const auto ship = morgue.ship();
  CHECK(ship(Parcel{.id = "e-1", .text = "good"}).status == Status::applied);
  CHECK(ship(Parcel{.id = "e-1", .text = "other"}).status == Status::mismatch);
  CHECK(morgue.dead().redrive(ship, {}, decoded).failed == 1);
  CHECK(morgue.dead().list().at(0).last.code == code::mismatch);
  CHECK(morgue.effect_ids() == "e-1");
}

TEST_CASE("twenty redrives with long errors leave a small record", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  std::string text;
  std::uint64_t random = 1;
  while (text.size() < 8'192) {  // nothing that could be compressed
    random = random * 6364136223846793005U + 1442695040888963407U;
    text += static_cast<char>('!' + (random >> 58U));
  }
  morgue.why = [&](const std::string&) { return std::optional<std::string>{text}; };
  const auto ship = morgue.ship();
  for (int i = 0; i < 20; ++i) CHECK(morgue.dead().redrive(ship, {}, decoded).failed == 1);
  CHECK(morgue.dead().list().at(0).redrives == 20);
  CHECK(morgue.count("dead_letters") == "1");
  CHECK(std::stoi(morgue.value("SELECT pg_column_size(d.*) FROM " + morgue.letters() + " d")) < 2'000);
}

TEST_CASE("letters that are no longer what their message was are passed over and counted", "[redrive]") {
  Morgue morgue;
  morgue.kill({"good", "null", "throws", "tenant", "id", "says", "hidden", "none"});
  morgue.dead().record_undecodable("ship.v1", "{", "no");
  const auto set = [&](const std::string& what, const std::string& id) {
    execute("UPDATE " + morgue.letters() + " SET " + what + " WHERE event_id = '" + id + "'");
  };
  set("payload = 'tenant|text of tenant|other'", "tenant");
  set("payload = 'another|text of id|'", "id");
  set("payload = 'says|another text|'", "says");
  set("payload = 'hidden|***|', payload_kept = 'redacted'", "hidden");
  set("payload = NULL, payload_kept = 'none'", "none");
  morgue.mend();
  const auto ship = morgue.ship();
  const auto decode = [](const StoredDeadLetter& letter) -> std::optional<Parcel> {
    if (letter.event_id == "null") return std::nullopt;
    return parcel_of(*letter.payload);
  };
  const RedriveReport report = morgue.dead().redrive(ship, {}, decode);
  CHECK(report.applied == 2);
  CHECK(report.skipped.not_decoded == 1);
  CHECK(report.skipped.another_event == 3);
  CHECK(report.skipped.redacted == 1);
  CHECK(report.skipped.no_payload == 1);
  CHECK(report.skipped.undecodable == 1);
  CHECK(report.considered() == 9);
  CHECK(morgue.effect_ids() == "good,throws");
  CHECK(morgue.value("SELECT count(*) FROM " + morgue.letters() +
                     " WHERE closed_at IS NULL AND redrives = 0") == "7");
}

TEST_CASE("a message that has no event_of, or a fingerprint of another revision, goes by its record",
          "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  const IdempotentConsumer raw{
      "ship.v1", morgue.store(),
      [&](postgres::Transaction& tx, const std::string& bytes) { morgue.write(tx, bytes.substr(0, 3)); }};
  const auto bytes_of = [](const StoredDeadLetter& letter) { return *letter.payload; };
  CHECK(morgue.dead().redrive(raw, {}, bytes_of).applied == 1);
  CHECK(morgue.effect_ids() == "e-1");
  morgue.kill({"e-2"});
  execute("UPDATE " + morgue.letters() +
          " SET fingerprint = set_byte(fingerprint, 1, 9) WHERE event_id = 'e-2'");
  morgue.mend();
  CHECK(morgue.dead().redrive(morgue.ship(), {}, decoded).applied == 1);
  CHECK(morgue.value("SELECT get_byte(fingerprint, 1) FROM " + morgue.keys() + " WHERE event_id = 'e-2'") ==
        "9");
}

TEST_CASE("a redrive refuses what it cannot do", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1"});
  morgue.mend();
  const auto ship = morgue.ship();
  CHECK(
      refused([&] { return morgue.dead().redrive(ship, {.consumer = "bill.v1"}, decoded); }) ==
      "redrive: the filter names the consumer \"bill.v1\", and this one is \"ship.v1\": leave the name out, or give the consumer it belongs to");
  CHECK(refused([&] { return morgue.dead().redrive(ship, {}, decoded, {.per_second = 0}); }) != "");
  const IdempotentConsumer other{"other.v1", morgue.store(), morgue.handler()};
  CHECK(morgue.dead().redrive(other, {}, decoded).considered() == 0);
  CHECK(morgue.effect_ids().empty());
  const IdempotentConsumer wrong{"ship.v1", morgue.store(), [](postgres::Transaction&, const Parcel&) {
                                   throw ConfigurationError{"wrong"};
                                 }};
  CHECK_THROWS_AS(morgue.dead().redrive(wrong, {}, decoded), ConfigurationError);
  CHECK(morgue.dead().redrive(ship, {}, decoded).applied == 1);  // nothing holds it any more
}

TEST_CASE("a dry run says what would be done, and does nothing", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  execute("UPDATE " + morgue.letters() + " SET payload = NULL, payload_kept = 'none' WHERE event_id = 'e-2'");
  morgue.mend();
  const auto before = morgue.all("to_jsonb(dead_letters)");
  const RedriveReport report = morgue.dead().redrive(morgue.ship(), {}, decoded, {.dry_run = DryRun::yes});
  CHECK(report.ready == 1);
  CHECK(report.skipped.no_payload == 1);
  CHECK(report.considered() == 2);
  CHECK(morgue.effect_ids().empty());
  CHECK(morgue.all("to_jsonb(dead_letters)") == before);
}

TEST_CASE("a redrive keeps to its rate, its limit, its filter and its stop", "[redrive]") {
  FakeTime time;
  Morgue morgue{{.payload = keep}, server_dsn(), time.runtime()};
  morgue.kill({"e-1", "e-2", "e-3", "e-4", "e-5"});
  morgue.mend();
  const auto ship = morgue.ship();
  const RedriveReport paced = morgue.dead().redrive(ship, {}, decoded, {.limit = 3, .per_second = 4});
  CHECK(paced.applied == 3);
  CHECK(paced.pauses == 2);
  CHECK(time.slept() == std::vector<Duration>{250ms, 250ms});
  CHECK(morgue.effect_ids() == "e-1,e-2,e-3");

  std::stop_source stop;
  stop.request_stop();
  CHECK(morgue.dead().redrive(ship, {}, decoded, {.stop = stop.get_token()}).considered() == 0);
  CHECK(morgue.dead().redrive(ship, {.event_id = "e-5"}, decoded).applied == 1);
  CHECK(morgue.effect_ids() == "e-1,e-2,e-3,e-5");

  std::stop_source cancel;
  const IdempotentConsumer cancelled{"ship.v1", morgue.store(), [&](postgres::Transaction&, const Parcel&) {
                                       cancel.request_stop();
                                       throw TransientError{"down"};
                                     }};
  const auto ended = morgue.dead().redrive(cancelled, {}, decoded, {.stop = cancel.get_token()});
  CHECK(ended.considered() == 0);
  CHECK(morgue.dead().list().at(0).last.message == "it is broken");  // it did not fail
}

TEST_CASE("an event that was given up by its counted starts is tried again", "[redrive]") {
  Morgue morgue;
  const auto counting = [&] {
    return IdempotentConsumer{"ship.v1",
                              morgue.store(),
                              [&](postgres::Transaction& tx, const Parcel& parcel) {
                                morgue.write(tx, parcel.id);
                                if (const auto reason = morgue.why(parcel.id)) throw TransientError{*reason};
                              },
                              ConsumerOptions{.attempts = Attempts::counted_by_store},
                              Redeliver{Immediate{} | MaxAttempts{2}},
                              morgue.dead()};
  };
  const auto ship = counting();
  const Parcel parcel{.id = "e-1"};
  CHECK(ship(parcel).action == Action::redeliver);
  CHECK(ship(parcel).action == Action::acknowledge);
  CHECK(told(ship(parcel)) == "rejected crashed");
  morgue.mend();
  CHECK(morgue.dead().redrive(ship, {}, decoded).applied == 1);
  CHECK(morgue.effect_ids() == "e-1");
}

TEST_CASE("two redrives at once, and a discard, leave each other's letters alone", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  DeadLetters elsewhere{morgue.store(), {.payload = keep}};
  std::latch at_work{1};
  std::latch go_on{1};
  std::atomic<int> starts = 0;
  const IdempotentConsumer slow{"ship.v1", morgue.store(),
                                [&](postgres::Transaction& tx, const Parcel& parcel) {
                                  ++starts;
                                  morgue.write(tx, parcel.id);
                                  at_work.count_down();
                                  go_on.wait();
                                }};
  RedriveReport first;
  std::thread one{[&] { first = morgue.dead().redrive(slow, {.event_id = "e-1"}, decoded); }};
  at_work.wait();
  morgue.mend();
  const RedriveReport second = elsewhere.redrive(morgue.ship(), {}, decoded);
  const auto discarded = elsewhere.discard(DeadLetterFilter{.event_id = "e-1"}, "not now");
  go_on.count_down();
  one.join();
  CHECK(second.skipped.locked == 1);
  CHECK(second.applied == 1);
  CHECK(discarded == 0);
  CHECK(first.applied == 1);
  CHECK(starts == 1);
  CHECK(morgue.effect_ids() == "e-1,e-2");
  CHECK(morgue.all("closed_as") == "redriven,redriven");
}

TEST_CASE("a redrive passes over a row that somebody holds", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  morgue.mend();
  pqxx::connection connection{server_dsn()};
  pqxx::work holder{connection};
  holder.exec("SELECT 1 FROM " + morgue.letters() + " WHERE event_id = 'e-1' FOR UPDATE");
  const RedriveReport report = morgue.dead().redrive(morgue.ship(), {}, decoded);
  CHECK(report.skipped.locked == 1);
  CHECK(report.applied == 1);
}

TEST_CASE("a redrive that ends half-way is repeated, and does nothing twice", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2", "e-3"});
  morgue.mend();
  const auto ship = morgue.ship();
  const auto half_way = [](const StoredDeadLetter& letter) {
    if (letter.event_id == "e-2") throw std::runtime_error{"not this one"};
    return decoded(letter);
  };
  CHECK_THROWS_WITH(morgue.dead().redrive(ship, {}, half_way), "not this one");
  CHECK(morgue.effect_ids() == "e-1");
  const RedriveReport again = morgue.dead().redrive(ship, {}, decoded);
  CHECK(again.applied == 2);
  CHECK(again.considered() == 2);
  CHECK(morgue.effect_ids() == "e-1,e-2,e-3");
}

TEST_CASE("a letter that was handled and not closed is closed by the next redrive", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  morgue.mend();
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  const auto ship = morgue.ship();
  proxy.arm({.cut = Cut::before_server, .word = "redriven"});
  proxy.arm({.cut = Cut::before_server, .word = "redriven"});  // nor when it is said again
  CHECK_THROWS_AS(dead.redrive(ship, {}, decoded), TransientError);
  CHECK(proxy.fired() == 2);
  CHECK(morgue.effect_ids() == "e-1");
  CHECK(morgue.dead().list().size() == 2);
  const RedriveReport again = dead.redrive(ship, {}, decoded);
  CHECK(again.duplicate == 1);
  CHECK(again.applied == 1);
  CHECK(morgue.effect_ids() == "e-1,e-2");
  CHECK(morgue.dead().list().empty());
}

TEST_CASE("what a redrive tells is counted once although an answer is lost", "[redrive]") {
  const bool fails = GENERATE(false, true);
  CAPTURE(fails);
  Morgue morgue;
  morgue.kill({"e-1"});
  if (!fails) morgue.mend();
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  proxy.arm(
      {.cut = Cut::answer, .word = "redrives", .nth = 2});  // the first is among the columns that are read
  const RedriveReport report = dead.redrive(morgue.ship(), {}, decoded);
  CHECK(proxy.fired() == 1);
  CHECK(report.applied + report.failed == 1);
  CHECK(morgue.all("redrives") == "1");
}

TEST_CASE("a redrive whose sessions are ended under its handler goes on", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2"});
  FaultProxy proxy{server_socket_dir()};
  const PostgresStore behind{proxy.dsn(), morgue.options()};
  DeadLetters dead{behind};
  morgue.why = [&](const std::string&) {
    proxy.cut_all();
    return std::optional<std::string>{};
  };
  CHECK(dead.redrive(morgue.ship(), {}, decoded).applied == 2);
  CHECK(morgue.effect_ids() == "e-1,e-2");
  CHECK(morgue.dead().list().empty());
}

TEST_CASE("dies in a redrive", "[.][dies_in_redrive]") {
  const char* schema = std::getenv(schema_variable);
  if (schema == nullptr) return;
  PostgresStore store{server_dsn(), {.schema = schema}};
  DeadLetters dead{store, {.payload = keep}};
  struct Killer {
    int decided = 0;
    void observe(const Observation& seen) {  // the effect is committed, and its letter still open
      if (seen.what == Observed::decided && ++decided == 2) ::kill(::getpid(), SIGKILL);
    }
  };
  const IdempotentConsumer ship{
      "ship.v1", store,
      [&](postgres::Transaction& tx, const Parcel& parcel) {
        postgres::exec(tx, "INSERT INTO " + std::string{schema} + ".effects (id) VALUES ($1)", parcel.id);
      },
      Killer{}};
  static_cast<void>(dead.redrive(ship, {}, decoded));
}

TEST_CASE("a redrive that is killed is repeated at once, and does nothing twice", "[redrive]") {
  Morgue morgue;
  morgue.kill({"e-1", "e-2", "e-3"});
  crash_in_redrive(morgue.schema());
  CHECK(morgue.effect_ids() == "e-1,e-2");
  CHECK(morgue.all("coalesce(closed_as, 'open')") == "redriven,open,open");
  morgue.mend();
  const auto ship = morgue.ship();
  RedriveReport again;
  await("the server to see that the killed process is gone", [&] {
    const RedriveReport round = morgue.dead().redrive(ship, {}, decoded);
    again.duplicate += round.duplicate;
    again.applied += round.applied;
    return round.skipped.locked == 0;
  });
  CHECK(again.duplicate == 1);
  CHECK(again.applied == 1);
  CHECK(morgue.effect_ids() == "e-1,e-2,e-3");
  CHECK(morgue.all("closed_as") == "redriven,redriven,redriven");
}

}  // namespace idem::tests::mourning
