// SPDX-License-Identifier: MIT
#pragma once

// What a handler can throw, what a caller can stop, and what becomes of the event.

#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "conformance/bench.hpp"

namespace idem::tests {

/// Whether nothing of an event is there: it can be handled as if it had never come.
template <class Bench>
void check_nothing_stored(Bench& bench) {
  CHECK(bench.keys() == 0);
  CHECK(bench.sum() == 0);
}

/// Shows that a plain consumer of the same name can still handle the event.
template <class Bench>
void check_can_be_handled(Bench& bench, const std::string& name, const Payment& payment = {}) {
  int starts = 0;
  const IdempotentConsumer again{name, bench.store, paying(bench, starts)};
  check_outcome(again(payment), Status::applied, Action::acknowledge, 1);
  CHECK(bench.sum() == payment.amount);
}

struct NoException {};

/// Throws the `kind`-th thing of which nobody can say whether it will go away.
[[noreturn]] inline void throw_something_unknown(int kind) {
  switch (kind) {
    case 0: throw 42;
    case 1: throw std::runtime_error{"time-out"};
    case 2: throw std::system_error{std::make_error_code(std::errc::operation_canceled)};
    case 3: throw NoException{};
    case 4: throw std::logic_error{"a bug"};
    case 5: throw "text";
    case 6: throw InvalidKey{"of something inside the handler"};
    default: throw std::bad_alloc{};
  }
}
inline constexpr int unknown_kinds = 8;

/// 1 s between deliveries, and at most `deliveries` of them.
[[nodiscard]] constexpr auto each_second(int deliveries) {
  return Redeliver{ConstantBackoff{std::chrono::seconds{1}} | NoJitter{} | MaxAttempts{deliveries}};
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> failure_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"a transient failure is tried again in the call, and the attempts are counted",
       [](Bench& bench) {
         int starts = 0;
         FakeTime time;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      failing(bench, starts,
                                              [](int start) {
                                                if (start < 3) throw TransientError{"bank is down"};
                                              }),
                                      ExponentialBackoff{100ms, 5s} | NoJitter{} | MaxAttempts{5},
                                      time.runtime()};
         check_outcome(pay(Payment{.amount = 7}), Status::applied, Action::acknowledge, 3);
         CHECK(starts == 3);
         CHECK(bench.sum() == 7);
         CHECK(time.slept() == std::vector<Duration>{100ms, 200ms});
       }},
      {"a later attempt sees nothing of an earlier one",
       [](Bench& bench) {
         std::vector<std::int64_t> seen;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>& tx, const Payment& p) {
                                        seen.push_back(bench.seen(tx));
                                        bench.write(tx, p.amount);
                                        seen.push_back(bench.seen(tx));
                                        if (seen.size() < 6) throw TransientError{"half-way"};
                                      },
                                      Immediate{} | MaxAttempts{3}};
         check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 3);
         CHECK(seen == std::vector<std::int64_t>{0, 1, 0, 1, 0, 1});
         CHECK(bench.sum() == 1);
       }},
      {"when the attempts of a call are used up, the event is deferred by Redeliver's delay and stays new",
       [](Bench& bench) {
         int starts = 0;
         FakeTime time;
         const IdempotentConsumer pay{
             "pay.v1",
             bench.store,
             failing(bench, starts, [](int) { throw TransientError{"bank is down"}; }),
             ConstantBackoff{10ms} | NoJitter{} | MaxAttempts{3},
             Redeliver{Intervals{1min, 5min, 30min} | NoJitter{}},
             time.runtime()};
         const std::vector<std::pair<std::int64_t, Duration>> expected{{1, 1min}, {2, 5min}, {3, 30min}};
         for (const auto& [delivery, delay] : expected) {
           INFO("delivery " << delivery);
           const auto outcome = pay(Payment{.delivery = delivery});
           check_outcome(outcome, Status::deferred, Action::redeliver, 3);
           CHECK(outcome.redeliver_after == delay);
           REQUIRE(outcome.failure);
           CHECK(outcome.failure->kind == ErrorClass::transient);
           CHECK(contains(outcome.failure->message, "bank is down"));
         }
         CHECK(time.slept() == std::vector<Duration>(6, 10ms));
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"when Redeliver has stopped, a failing event is rejected",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{
             "pay.v1", bench.store, failing(bench, starts, [](int) { throw TransientError{"bank is down"}; }),
             Immediate{} | MaxAttempts{2}, Redeliver{Intervals{1min, 5min, 30min}}};
         for (const std::int64_t delivery : {4, 5, 1'000'000}) {
           CAPTURE(delivery);
           const auto outcome = pay(Payment{.delivery = delivery});
           check_outcome(outcome, Status::rejected, Action::dead_letter, 2);
           CHECK(contains(outcome.failure->message, "bank is down"));
         }
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"without a policy a call is one attempt, and without Redeliver an event is never given up",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, failing(bench, starts, [](int) {
                                        throw TransientError{"bank is down"};
                                      })};
         for (const std::int64_t delivery : {0, 1, 100, 1'000'000'000}) {
           CAPTURE(delivery);
           const auto outcome = pay(Payment{.delivery = delivery});
           check_outcome(outcome, Status::deferred, Action::redeliver, 1);
           CHECK(outcome.redeliver_after >= 500ms);
           CHECK(outcome.redeliver_after <= 5min);
         }
         check_nothing_stored(bench);
       }},
      {"nobody comes back earlier than the handler asked for",
       [](Bench& bench) {
         int starts = 0;
         FakeTime time;
         const auto busy = [](int) { throw TransientError{"come later", 15s}; };
         const IdempotentConsumer plain{"plain.v1", bench.store, failing(bench, starts, busy),
                                        time.runtime()};
         const IdempotentConsumer soon{
             "soon.v1",      bench.store,   failing(bench, starts, busy), Immediate{} | MaxAttempts{3},
             each_second(5), time.runtime()};
         for (const auto& outcome : {plain(Payment{}), soon(Payment{})}) {
           check_outcome(outcome, Status::deferred, Action::redeliver, 1);
           CHECK(outcome.redeliver_after >= 15s);
           CHECK(outcome.failure->kind == ErrorClass::throttled);
         }
         const IdempotentConsumer patient{"patient.v1",
                                          bench.store,
                                          failing(bench, starts, busy),
                                          Immediate{} | HonourRetryAfter{20s} | MaxAttempts{2},
                                          each_second(5),
                                          time.runtime()};
         const auto outcome = patient(Payment{});
         check_outcome(outcome, Status::deferred, Action::redeliver, 2);
         CHECK(outcome.redeliver_after >= 15s);
         CHECK(time.slept() == std::vector<Duration>{15s});
         check_nothing_stored(bench);
       }},
      {"an event that waits too long for its time is rejected all the same",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      failing(bench, starts,
                                              [](int) {
                                                throw TransientError{"come later", 15s};
                                              }),
                                      each_second(3)};
         check_outcome(pay(Payment{.delivery = 3}), Status::rejected, Action::dead_letter, 1);
       }},
      {"a failed precondition is left to Redeliver, whatever the policy of the call",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{
             "pay.v1", bench.store,
             failing(bench, starts, [](int) { throw PreconditionFailed{"order is closed"}; }),
             Immediate{} | MaxAttempts{5}, each_second(3)};
         const auto early = pay(Payment{.delivery = 2});
         check_outcome(early, Status::deferred, Action::redeliver, 1);
         CHECK(early.redeliver_after == 1s);
         CHECK(early.failure->code == code::precondition_failed);
         const auto late = pay(Payment{.delivery = 3});
         check_outcome(late, Status::rejected, Action::dead_letter, 1);
         CHECK(late.failure->code == code::precondition_failed);
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"a permanent failure is rejected at once",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{
             "pay.v1", bench.store,
             failing(bench, starts, [](int) { throw PermanentError{"unknown currency"}; }),
             Immediate{} | MaxAttempts{5}};
         const auto outcome = pay(Payment{});
         check_outcome(outcome, Status::rejected, Action::dead_letter, 1);
         CHECK(outcome.failure->kind == ErrorClass::permanent);
         CHECK(contains(outcome.failure->message, "unknown currency"));
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"a configuration error that a handler lets out is rolled back and thrown on",
       [](Bench& bench) {
         int starts = 0;
         Recorder seen;
         const IdempotentConsumer pay{
             "pay.v1", bench.store,
             failing(bench, starts, [](int) { throw ConfigurationError{"no such queue"}; }),
             Immediate{} | MaxAttempts{5}, seen};
         for (int i = 1; i <= 3; ++i) {
           CHECK_THROWS_AS(static_cast<void>(pay(Payment{})), ConfigurationError);
           CHECK(starts == i);
         }
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"whatever else a handler throws is transient, and never recorded as done",
       [](Bench& bench) {
         for (int kind = 0; kind < unknown_kinds; ++kind) {
           CAPTURE(kind);
           int starts = 0;
           const IdempotentConsumer pay{
               "pay.v1", bench.store, failing(bench, starts, [kind](int) { throw_something_unknown(kind); }),
               Immediate{} | MaxAttempts{2}, each_second(3)};
           const auto deferred = pay(Payment{});
           check_outcome(deferred, Status::deferred, Action::redeliver, 2);
           CHECK(deferred.failure->kind == ErrorClass::transient);
           CHECK_FALSE(deferred.failure->message.empty());
           check_outcome(pay(Payment{.delivery = 3}), Status::rejected, Action::dead_letter, 2);
           check_nothing_stored(bench);
         }
         check_can_be_handled(bench, "pay.v1");
       }},
      {"a caller that has asked to stop gets the event back untouched",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), each_second(1)};
         std::stop_source stop;
         stop.request_stop();
         const auto outcome = pay(Payment{}, stop.get_token());
         check_outcome(outcome, Status::deferred, Action::redeliver, 0);
         CHECK(outcome.redeliver_after == 0s);
         CHECK(outcome.failure->kind == ErrorClass::cancelled);
         CHECK(starts == 0);
         check_nothing_stored(bench);
         check_can_be_handled(bench, "pay.v1");
       }},
      {"a stop during the sleep between attempts ends the call, without a delay",
       [](Bench& bench) {
         int starts = 0;
         FakeTime time;
         std::stop_source stop;
         time.on_sleep = [&] { stop.request_stop(); };
         const IdempotentConsumer pay{
             "pay.v1",
             bench.store,
             failing(bench, starts, [](int) { throw TransientError{"bank is down"}; }),
             ConstantBackoff{10ms} | NoJitter{} | MaxAttempts{5},
             each_second(1),
             time.runtime()};
         const auto outcome = pay.process({.id = "p-1", .delivery_count = 1}, Payment{}, stop.get_token());
         check_outcome(outcome, Status::deferred, Action::redeliver, 1);
         CHECK(outcome.redeliver_after == 0s);
         CHECK(outcome.failure->kind == ErrorClass::cancelled);
         CHECK(time.slept() == std::vector<Duration>{10ms});
         check_nothing_stored(bench);
       }},
      {"a handler that fails because its caller asked to stop does not use up the event's last delivery",
       [](Bench& bench) {
         int starts = 0;
         std::stop_source stop;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      failing(bench, starts,
                                              [&stop](int) {
                                                stop.request_stop();
                                                throw TransientError{"interrupted"};
                                              }),
                                      each_second(1)};
         const auto outcome = pay(Payment{}, stop.get_token());
         check_outcome(outcome, Status::deferred, Action::redeliver, 1);
         CHECK(outcome.redeliver_after == 0s);
         check_nothing_stored(bench);
       }},
      {"an effect that was committed before a stop was seen is applied",
       [](Bench& bench) {
         std::stop_source stop;
         const IdempotentConsumer pay{"pay.v1", bench.store, [&](TransactionOn<Bench>& tx, const Payment& p) {
                                        bench.write(tx, p.amount);
                                        stop.request_stop();
                                      }};
         check_outcome(pay(Payment{}, stop.get_token()), Status::applied, Action::acknowledge, 1);
         CHECK(bench.sum() == 1);
       }},
      {"a limit on deliveries that nobody counts stops the worker before anything is claimed",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), each_second(3)};
         CHECK_THROWS_AS(static_cast<void>(pay(Payment{.delivery = 0})), ConfigurationError);
         CHECK_THROWS_AS(static_cast<void>(pay(Payment{.delivery = -1})), ConfigurationError);
         CHECK(starts == 0);
         check_nothing_stored(bench);
         CHECK(pay(Payment{.delivery = 1}).status == Status::applied);
         // Found or not: a misconfigured worker stops on its first message.
         CHECK_THROWS_AS(static_cast<void>(pay(Payment{.delivery = 0})), ConfigurationError);
         const IdempotentConsumer unlimited{"pay.v2", bench.store, paying(bench, starts),
                                            Redeliver{ConstantBackoff{1s}}};
         CHECK(unlimited(Payment{.delivery = 0}).status == Status::applied);
       }},
      {"options that contradict each other make no consumer",
       [](Bench& bench) {
         int starts = 0;
         const std::vector<ConsumerOptions> refused{{.wait_limit = 0ms},
                                                    {.wait_limit = -1s},
                                                    {.wait_limit = 999us},
                                                    {.lease = Duration{0}},
                                                    {.lease = -1s}};
         for (const ConsumerOptions& options : refused)
           CHECK_THROWS_AS((IdempotentConsumer{"pay.v1", bench.store, paying(bench, starts), options}),
                           ConfigurationError);
         const IdempotentConsumer least{"pay.v1", bench.store, paying(bench, starts),
                                        ConsumerOptions{.wait_limit = 1ms, .lease = {}}};
         CHECK(least(Payment{}).status == Status::applied);
       }},
      {"the delay that is told is the delay that is slept, drawn once",
       [](Bench& bench) {
         for (const std::uint64_t random : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
           CAPTURE(random);
           int starts = 0;
           FakeTime time;
           Recorder seen;
           const IdempotentConsumer pay{
               "pay.v1",
               bench.store,
               failing(bench, starts, [](int) { throw TransientError{"bank is down"}; }),
               ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{4},
               Redeliver{ConstantBackoff{10s} | EqualJitter{}},
               time.runtime(random),
               seen};
           const auto outcome = pay(Payment{});
           std::vector<Duration> told;
           for (const auto& entry : seen.entries())
             if (entry.what == Observed::retrying && entry.delay > 0s) told.push_back(entry.delay);
           CHECK(told == time.slept());
           CHECK(seen.count(Observed::retrying) == 3);
           CHECK(seen.entries().back().what == Observed::decided);
           CHECK(seen.entries().back().delay == outcome.redeliver_after);
           CHECK(outcome.redeliver_after == (random == 0 ? 5s : random + 1 == 0 ? 10s : 7500ms));
           CHECK(time.slept() == (random == 0       ? std::vector<Duration>{}
                                  : random + 1 == 0 ? std::vector<Duration>{100ms, 200ms, 400ms}
                                                    : std::vector<Duration>{50ms, 100ms, 200ms}));
         }
       }},
  };
}

}  // namespace idem::tests
