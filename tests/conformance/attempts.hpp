// SPDX-License-Identifier: MIT
#pragma once

// Starts that the store counts: what crashes is found out, and an outage is nobody's fault.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "conformance/bench.hpp"
#include "conformance/concurrency.hpp"
#include "conformance/failures.hpp"
#include "conformance/leasing.hpp"
#include "conformance/windows.hpp"

namespace idem::tests {

inline constexpr ConsumerOptions counted{.attempts = Attempts::counted_by_store};

/// A start of the event "p-1" of "pay.v1" that is never ended: its process died.
template <class Store>
[[nodiscard]] Start crash(Store& store) {
  const Key key{"", "pay.v1", "p-1"};
  const Started started = store.start({.key = key});
  REQUIRE(std::holds_alternative<Start>(started));
  return std::get<Start>(started);
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> attempt_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"an event whose starts never ended is rejected as crashed at Redeliver's limit, without a start",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const auto count = handler([&] { ++starts; });
           const IdempotentConsumer pay{"pay.v1", bench.store, count, counted, each_second(3)};
           for (std::uint64_t before = 0; before < 3; ++before)
             CHECK(crash(before % 2 == 0 ? bench.store : bench.rival()).before == before);
           for (int delivery = 0; delivery < 2; ++delivery) {
             const auto outcome = pay(Payment{});
             check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
             CHECK(code_of(outcome) == code::crashed);
           }
           CHECK(starts == 0);
           CHECK(bench.sum() == 0);
           const IdempotentConsumer without_limit{"pay.v1", bench.store, count, counted};
           check_outcome(without_limit(Payment{}), Status::applied, Action::acknowledge, 1);
         });
       }},
      {"below the limit an event that crashed before is started",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {}), counted, each_second(3)};
           static_cast<void>(crash(bench.store));
           static_cast<void>(crash(bench.rival()));
           check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
         });
       }},
      {"failures are counted by event, whatever the transport counts",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] { throw TransientError{"down"}; }),
                                        counted, Redeliver{Intervals{1s, 2s} | NoJitter{}}};
           const std::int64_t told_by_transport[] = {0, 1'000};
           int n = 0;
           for (const Duration delay : {1s, 2s}) {
             const auto outcome = pay(Payment{.delivery = told_by_transport[n++]});
             check_outcome(outcome, Status::deferred, Action::redeliver, 1);
             CHECK(outcome.redeliver_after == delay);
           }
           check_outcome(pay(Payment{.id = "p-2"}), Status::deferred, Action::redeliver, 1);
           const auto last = pay(Payment{.delivery = 1});
           check_outcome(last, Status::rejected, Action::dead_letter, 1);
           CHECK(code_of(last) != code::crashed);
           CHECK(contains(message_of(last), "down"));
           const auto beyond = pay(Payment{});
           check_outcome(beyond, Status::rejected, Action::dead_letter, 0);
         });
       }},
      {"three workers together start an event as often as is allowed",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           std::atomic<int> starts = 0;
           const auto failing_one = handler([&] {
             ++starts;
             throw TransientError{"down"};
           });
           const IdempotentConsumer one{"pay.v1", bench.store, failing_one, counted, each_second(5)};
           const IdempotentConsumer other{"pay.v1", bench.rival(), failing_one, counted, each_second(5)};
           std::atomic<int> rejections = 0;
           std::vector<std::thread> workers;
           for (int worker = 0; worker < 3; ++worker)
             workers.emplace_back([&, worker] {
               for (int delivery = 0; delivery < 10'000; ++delivery) {
                 const auto outcome = worker == 0 ? other(Payment{}) : one(Payment{});
                 if (outcome.action != Action::dead_letter) continue;
                 ++rejections;
                 return;
               }
             });
           for (std::thread& worker : workers) worker.join();
           CHECK(starts == 5);
           CHECK(rejections == 3);
           CHECK(bench.sum() == 0);
         });
       }},
      {"a call counts as one start, however often it tries",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const IdempotentConsumer pay{"pay.v1",
                                        bench.store,
                                        handler([&] {
                                          ++starts;
                                          throw TransientError{"down"};
                                        }),
                                        Immediate{} | MaxAttempts{4},
                                        counted,
                                        each_second(2)};
           check_outcome(pay(Payment{}), Status::deferred, Action::redeliver, 4);
           check_outcome(pay(Payment{}), Status::rejected, Action::dead_letter, 4);
           CHECK(starts == 8);
         });
       }},
      {"what starts no handler is not counted: duplicates, mismatches, events in progress or too old",
       [](Bench& bench) {
         const IdempotentConsumer mail{
             "mail.v1", bench.rival(), [](Lease&, const Payment&) { throw PermanentError{"ran"}; },
             ConsumerOptions{.window = 24h, .attempts = Attempts::counted_by_store}, each_second(1)};
         {
           Owner<Bench> owner{bench, {.lease = 60s, .heartbeat = false, .window = 24h}};
           for (int i = 0; i < 3; ++i) CHECK(mail(Payment{}).status == Status::in_progress);
           CHECK(owner.returns().status == Status::applied);
         }
         for (int i = 0; i < 3; ++i) CHECK(mail(Payment{}).status == Status::duplicate);
         for (int i = 0; i < 3; ++i) CHECK(mail(Payment{.amount = 2}).status == Status::mismatch);
         bench.advance(25h);
         for (int i = 0; i < 3; ++i)
           CHECK(code_of(mail.process(happened(bench.now() - 48h), Payment{})) == code::beyond_window);
         const auto first = mail(Payment{});
         check_outcome(first, Status::rejected, Action::dead_letter, 1);
         CHECK(contains(message_of(first), "ran"));
       }},
      {"a stopped call is not counted",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           std::stop_source stop;
           const IdempotentConsumer stopping{"pay.v1", bench.store, handler([&] {
                                               stop.request_stop();
                                               throw TransientError{"down"};
                                             }),
                                             counted, each_second(1)};
           for (int i = 0; i < 2; ++i) {
             stop = std::stop_source{};
             const auto outcome = stopping(Payment{}, stop.get_token());
             check_outcome(outcome, Status::deferred, Action::redeliver, 1);
             CHECK(kind_of(outcome) == ErrorClass::cancelled);
           }
         });
       }},
      {"a ConfigurationError of the handler is not counted",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([&] {
                                          if (++starts < 5) throw ConfigurationError{"a nested consumer's"};
                                        }),
                                        counted, each_second(1)};
           for (int i = 0; i < 4; ++i) CHECK_THROWS_AS(static_cast<void>(pay(Payment{})), ConfigurationError);
           check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
         });
       }},
      {"a lease that was lost is not counted",
       [](Bench& bench) {
         const ConsumerOptions brief{.heartbeat = false, .attempts = Attempts::counted_by_store};
         Owner<Bench> owner{bench, brief};
         bench.advance(61s);
         {
           Owner<Bench> second{bench.rival(), brief};
           bench.advance(61s);
           const Key key{"", "mail.v1", "p-1"};
           const Grant third = must_acquire(bench.store, {.key = key}, 60s);
           CHECK(code_of(second.returns()) == code::lease_lost);
           CHECK(code_of(owner.returns()) == code::lease_lost);
           CHECK(is<Kept>(bench.store.release({.key = key}, third)));
         }
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world), counted, each_second(1)};
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"starts that overlap end each by itself",
       [](Bench& bench) {
         const Claim claim{.key = Key{"", "pay.v1", "p-1"}};
         const Start first = crash(bench.store);
         const Start second = crash(bench.rival());
         const Start third = crash(bench.store);
         CHECK(third.before == 2);
         CHECK(is<Kept>(bench.store.end(claim, first, StartEnd::not_counted)));
         CHECK(is<Kept>(bench.rival().end(claim, second, StartEnd::failed)));
         CHECK(is<Kept>(bench.store.end(claim, third, StartEnd::not_counted)));
         CHECK(is<Lost>(bench.store.end(claim, first, StartEnd::not_counted)));
         CHECK(is<Lost>(bench.store.end(claim, second, StartEnd::failed)));
         CHECK(crash(bench.rival()).before == 1);
       }},
      {"an event whose window ended is counted afresh",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const IdempotentConsumer pay{
               "pay.v1", bench.store, handler([&] {
                 if (++starts % 2 == 1) throw TransientError{"down"};
               }),
               ConsumerOptions{.window = 24h, .attempts = Attempts::counted_by_store}, each_second(2)};
           for (int round = 0; round < 3; ++round) {
             CAPTURE(round);
             check_outcome(pay(Payment{}), Status::deferred, Action::redeliver, 1);
             check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
             bench.advance(25h);
           }
           for (std::uint64_t before = 0; before < 2; ++before) CHECK(crash(bench.store).before == before);
           check_outcome(pay(Payment{}), Status::rejected, Action::dead_letter, 0);
         });
       }},
      {"a handler in the store that waits for another call is counted when it starts",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{
             "pay.v1", bench.store, paying(bench, starts),
             ConsumerOptions{.wait_limit = 5ms, .attempts = Attempts::counted_by_store}, each_second(1)};
         {
           Holder<Bench> holder{bench, bench.rival()};
           for (int i = 0; i < 3; ++i) CHECK(pay(Payment{}).status == Status::in_progress);
         }
         check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
  };
}

}  // namespace idem::tests
