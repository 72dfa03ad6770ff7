// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "conformance/attempts.hpp"
#include "conformance/leasing.hpp"
#include "conformance/postgres_bench.hpp"
#include "support/catch.hpp"
#include "support/fault_proxy.hpp"

using namespace std::chrono_literals;

namespace idem::tests {

namespace {

/// A store that reaches its server through a proxy, and a plain one beside it.
struct Broken : PostgresBench {
  FaultProxy proxy{server_socket_dir()};
  PostgresStore proxied{proxy.dsn(), {.schema = schema, .max_connections = 2}};
  World world;

  /// Fills the pool, so that a message meets a connection that has worked before.
  void warm() {
    const IdempotentConsumer warming{"warm.v1", proxied, [](Lease&, const Payment&) {}};
    CHECK(warming(Payment{}).status == Status::applied);
  }
  void go_away() {
    proxy.refuse_connections(Refuse::yes);
    proxy.cut_all();
  }
  void come_back() { proxy.refuse_connections(Refuse::no); }
  void advance(Duration span) const {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
    execute("UPDATE " + schema + ".keys SET leased_until = leased_until - " + std::to_string(ms) +
            " * interval '1 millisecond'");
  }
  [[nodiscard]] std::string counts() const {
    return query_value("SELECT concat_ws(' ', starts, failures, cardinality(open_starts)) FROM " + schema +
                       ".attempts");
  }
};

/// Looks again at once where the library would pause.
[[nodiscard]] Runtime without_pauses() {
  return {.sleeper = [](auto, const std::stop_token&) {}};
}

[[nodiscard]] auto mailing(World& world) {
  return [&world](Lease& lease, const Payment& p) -> std::string {
    world.act(lease, p);
    return "receipt";
  };
}

constexpr ConsumerOptions still{.lease = std::chrono::minutes{10}, .heartbeat = false};

}  // namespace

TEST_CASE("a completion whose answer is lost is sent again with the same token: applied, once") {
  const Cut cut =
      GENERATE(Cut::answer, Cut::inside_answer, Cut::answer_unawaited, Cut::before_server, Cut::inside);
  const int times = GENERATE(1, 2, 5);  // the first one costs a pooled connection, the others fresh ones
  CAPTURE(name_of(cut), times);
  Broken bench;
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world), still, without_pauses()};
  for (int i = 0; i < times; ++i) bench.proxy.arm({.cut = cut, .word = "UPDATE", .bytes = 20});
  const auto outcome = mail(Payment{});
  CHECK(bench.proxy.fired() == static_cast<std::size_t>(times));
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.attempts == 1);
  CHECK(outcome.value == "receipt");
  CHECK(bench.world.count() == 1);
  const IdempotentConsumer cold{"mail.v1", bench.store, mailing(bench.world)};
  const auto again = cold(Payment{});
  check_outcome(again, Status::duplicate, Action::acknowledge, 0);
  CHECK(again.value == "receipt");
}

TEST_CASE("an acquisition whose answer is lost is sent again with the same token: one run") {
  const Cut cut =
      GENERATE(Cut::answer, Cut::inside_answer, Cut::answer_unawaited, Cut::before_server, Cut::inside);
  const bool warm = GENERATE(false, true);
  const int times = GENERATE(1, 3);
  CAPTURE(name_of(cut), warm, times);
  Broken bench;
  if (warm) bench.warm();
  const std::size_t keys_before = bench.keys();
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world), still, without_pauses()};
  for (int i = 0; i < times; ++i) bench.proxy.arm({.cut = cut, .word = "nextval", .bytes = 20});
  const auto outcome = mail(Payment{});
  CHECK(bench.proxy.fired() == static_cast<std::size_t>(times));
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.attempts == 1);
  CHECK(bench.world.count() == 1);
  CHECK(bench.keys() == keys_before + 1);
  check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
}

TEST_CASE("an acquisition whose answer is lost as the server goes away is found again when that is back") {
  Broken bench;
  bench.warm();
  int looks = 0;
  const Runtime runtime{.sleeper = [&](auto, const std::stop_token&) {
    if (++looks == 3) bench.come_back();
  }};
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world),
                                ConsumerOptions{.lease = std::nullopt}, runtime};
  bench.proxy.arm({.cut = Cut::answer, .word = "nextval"});
  bench.proxy.refuse_connections(Refuse::yes);
  const auto outcome = mail(Payment{});
  CHECK(bench.proxy.fired() == 1);
  CHECK(outcome.status == Status::applied);
  CHECK(outcome.resolved_in_doubt);
  CHECK(bench.world.count() == 1);
  CHECK(looks == 3);
}

TEST_CASE("an acquisition that stays in doubt defers the event, and rejects it never") {
  Broken bench;
  FakeTime time;
  const IdempotentConsumer mail{"mail.v1", bench.proxied,  mailing(bench.world),
                                still,     each_second(1), time.runtime()};
  bench.proxy.arm({.cut = Cut::answer, .word = "nextval"});
  time.on_sleep = [&] { bench.go_away(); };
  const auto outcome = mail(Payment{.delivery = 1'000});
  CHECK(outcome.status == Status::deferred);
  CHECK(outcome.action == Action::redeliver);
  CHECK(outcome.attempts == 0);
  CHECK(bench.world.count() == 0);
  bench.come_back();
  bench.advance(11min);
  CHECK(mail(Payment{}).status == Status::applied);
}

TEST_CASE("an effect that cannot be recorded is deferred, and the next run has the same idempotency key") {
  Broken bench;
  FakeTime time;
  int outages = 1;
  const auto handler = [&](Lease& lease, const Payment& p) {
    bench.world.act(lease, p);
    if (outages-- > 0) bench.go_away();
  };
  const ConsumerOptions options{.lease = 10min, .heartbeat = false, .attempts = Attempts::counted_by_store};
  const IdempotentConsumer mail{"mail.v1", bench.proxied, handler, options, each_second(1), time.runtime()};
  const auto outcome = mail(Payment{.delivery = 1'000});
  check_outcome(outcome, Status::deferred, Action::redeliver, 1);
  CHECK(code_of(outcome) == code::completion_unknown);
  CHECK(kind_of(outcome) == ErrorClass::reconnect);
  CHECK(outcome.redeliver_after > 0s);
  CHECK(time.now() >= FakeTime{}.now() + 5s);
  bench.come_back();
  CHECK(mail(Payment{}).status == Status::in_progress);  // what was made is not made again before its time
  bench.advance(11min);
  check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
  const auto deeds = bench.world.deeds();
  REQUIRE(deeds.size() == 2);
  CHECK(deeds[0].idempotency_key == deeds[1].idempotency_key);
  CHECK(deeds[0].token < deeds[1].token);
  CHECK(bench.counts() == "1 0 1");
}

TEST_CASE("an effect that was recorded, though nobody heard of it, is a duplicate to the next delivery") {
  Broken bench;
  FakeTime time;
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world), still, time.runtime()};
  bench.proxy.arm({.cut = Cut::answer, .word = "UPDATE"});
  bench.warm();
  bench.proxy.disarm();
  bench.proxy.arm({.cut = Cut::answer, .word = "UPDATE"});
  time.on_sleep = [&] { bench.go_away(); };
  // The first answer costs the pooled connection; from then on none can be had.
  const IdempotentConsumer away{"mail.v1", bench.proxied,
                                [&](Lease& lease, const Payment& p) -> std::string {
                                  bench.proxy.refuse_connections(Refuse::yes);
                                  return mailing(bench.world)(lease, p);
                                },
                                still, time.runtime()};
  const auto outcome = away(Payment{});
  check_outcome(outcome, Status::deferred, Action::redeliver, 1);
  CHECK(code_of(outcome) == code::completion_unknown);
  bench.come_back();
  const auto again = mail(Payment{});
  check_outcome(again, Status::duplicate, Action::acknowledge, 0);
  CHECK(again.value == "receipt");
  CHECK(bench.world.count() == 1);
}

TEST_CASE("an extension that the store does not answer loses nothing") {
  Broken bench;
  const IdempotentConsumer mail{"mail.v1", bench.proxied,
                                [&](Lease& lease, const Payment& p) {
                                  bench.world.act(lease, p);
                                  bench.go_away();
                                  lease.extend(20min);
                                  CHECK_FALSE(lease.lost());
                                  bench.come_back();
                                  bench.proxy.arm({.cut = Cut::answer, .word = "CASE"});
                                  lease.extend(20min);
                                  CHECK_FALSE(lease.lost());
                                  CHECK(rest_of_lease(bench, Key{"", "mail.v1", "p-1"}) > 15min);
                                },
                                still};
  check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
}

TEST_CASE("a release that does not arrive leaves the lease to its end") {
  Broken bench;
  const IdempotentConsumer failing_one{"mail.v1", bench.proxied,
                                       [&](Lease&, const Payment&) {
                                         bench.go_away();
                                         throw TransientError{"down"};
                                       },
                                       still};
  check_outcome(failing_one(Payment{}), Status::deferred, Action::redeliver, 1);
  bench.come_back();
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world), still};
  check_outcome(mail(Payment{}), Status::in_progress, Action::redeliver, 0);
  bench.advance(11min);
  check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
}

TEST_CASE("an outage while the handler runs is counted neither as a failure nor as a crash") {
  Broken bench;
  const bool told_later = GENERATE(false, true);  // whether the store is still away when the call ends
  const bool in_store = GENERATE(false, true);
  CAPTURE(told_later, in_store);
  int outages = 5;
  const auto outage = [&] {
    if (outages-- <= 0) return;
    if (told_later)
      bench.go_away();
    else
      bench.proxy.cut_all();
  };
  const ConsumerOptions options{.lease = 10min, .heartbeat = false, .attempts = Attempts::counted_by_store};
  const IdempotentConsumer pay{"pay.v1", bench.proxied,
                               [&](postgres::Transaction& tx, const Payment& p) {
                                 outage();
                                 bench.write(tx, p.amount);
                               },
                               options, each_second(1)};
  FakeTime time;
  const IdempotentConsumer mail{"mail.v1",
                                bench.proxied,
                                [&](Lease& lease, const Payment& p) {
                                  outage();
                                  bench.world.act(lease, p);
                                },
                                options,
                                each_second(1),
                                time.runtime()};
  for (int delivery = 0; delivery < 5; ++delivery) {
    const auto outcome = in_store ? pay(Payment{}) : mail(Payment{});
    bench.come_back();
    if (!told_later && !in_store) {  // the completion is repeated
      check_outcome(outcome, Status::applied, Action::acknowledge, 1);
      return;
    }
    check_outcome(outcome, Status::deferred, Action::redeliver, 1);
    bench.advance(11min);
  }
  check_outcome(in_store ? pay(Payment{}) : mail(Payment{}), Status::applied, Action::acknowledge, 1);
  CHECK(bench.counts() == "1 0 1");
}

TEST_CASE(
    "a start that could not be counted, or whose count was not answered, starts nothing and counts nothing") {
  Broken bench;
  const bool in_store = GENERATE(false, true);
  const Cut cut = GENERATE(Cut::answer, Cut::before_server);
  CAPTURE(in_store, name_of(cut));
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.proxied, paying(bench, starts), counted, each_second(1)};
  const IdempotentConsumer mail{"mail.v1", bench.proxied, [&](Lease&, const Payment&) { ++starts; }, counted,
                                each_second(1)};
  bench.proxy.arm({.cut = cut, .word = "open_starts"});
  const auto first = in_store ? pay(Payment{}) : mail(Payment{});
  check_outcome(first, Status::deferred, Action::redeliver, 0);
  CHECK(starts == 0);
  check_outcome(in_store ? pay(Payment{}) : mail(Payment{}), Status::applied, Action::acknowledge, 1);
  CHECK(starts == 1);
  CHECK(bench.counts() == "1 0 1");
}

TEST_CASE("a lease costs two round trips, and a duplicate two") {
  Broken bench;
  bench.warm();
  const IdempotentConsumer mail{"mail.v1", bench.proxied, mailing(bench.world), still};
  bench.proxy.reset_counts();
  CHECK(mail(Payment{}).status == Status::applied);
  CHECK(bench.proxy.round_trips() == 2);
  bench.proxy.reset_counts();
  CHECK(mail(Payment{}).status == Status::duplicate);
  CHECK(bench.proxy.round_trips() == 2);
}

}  // namespace idem::tests
