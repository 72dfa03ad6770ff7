// SPDX-License-Identifier: MIT
#pragma once

// For how long a key counts. A Bench has the store's clock in hand: see leasing.hpp.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "conformance/bench.hpp"
#include "conformance/leasing.hpp"

namespace idem::tests {

/// Shows something in both modes: `handler(work)` is one that does the work, in the store or outside.
template <class Bench, class Show>
void in_each_mode(Bench& bench, Show show) {
  {
    INFO("the effect is in the store");
    show(bench, [&bench](std::function<void()> work) {
      return [&bench, work = std::move(work)](TransactionOn<Bench>& tx, const Payment& p) {
        bench.write(tx, p.amount);
        work();
      };
    });
  }
  INFO("the effect is outside of the store");
  Bench fresh;
  show(fresh, [](std::function<void()> work) {
    return [work = std::move(work)](Lease&, const Payment&) { work(); };
  });
}

/// A payment with the time at which it happened.
[[nodiscard]] inline Event happened(std::chrono::system_clock::time_point when, const Payment& p = {}) {
  Event event = event_of(p);
  event.occurred_at = when;
  return event;
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> window_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"within its window an event is a duplicate, afterwards it is new, again and again",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const auto count = handler([&] { ++starts; });
           const ConsumerOptions day{.window = 24h};
           const IdempotentConsumer pay{"pay.v1", bench.store, count, day};
           const IdempotentConsumer cold{"pay.v1", bench.rival(), count, day};
           for (int round = 1; round <= 3; ++round) {
             CAPTURE(round);
             check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
             bench.advance(23h);
             check_outcome(pay(Payment{}), Status::duplicate, Action::acknowledge, 0);
             check_outcome(cold(Payment{}), Status::duplicate, Action::acknowledge, 0);
             bench.advance(2h);
             CHECK(starts == round);
           }
           CHECK(bench.keys() == 1);
         });
       }},
      {"what a message says is compared within the window, and free afterwards",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const ConsumerOptions day{.window = 24h};
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {}), day};
           CHECK(pay(Payment{.amount = 1}).status == Status::applied);
           bench.advance(23h);
           check_outcome(pay(Payment{.amount = 2}), Status::mismatch, Action::dead_letter, 0);
           bench.advance(2h);
           check_outcome(pay(Payment{.amount = 2}), Status::applied, Action::acknowledge, 1);
           check_outcome(pay(Payment{.amount = 1}), Status::mismatch, Action::dead_letter, 0);
           check_outcome(pay(Payment{.amount = 2}), Status::duplicate, Action::acknowledge, 0);
         });
       }},
      {"the value of an ended window is not replayed, that of the new one is",
       [](Bench& bench) {
         int n = 0;
         const ConsumerOptions day{.window = 24h};
         const IdempotentConsumer mail{"mail.v1", bench.store, [&](Lease&, const Payment&) { return ++n; },
                                       day};
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>&, const Payment&) { return ++n; }, day};
         CHECK(mail(Payment{}).value == 1);
         CHECK(pay(Payment{}).value == 2);
         bench.advance(25h);
         CHECK(mail(Payment{}).value == 3);
         CHECK(pay(Payment{}).value == 4);
         CHECK(mail(Payment{}).value == 3);
         CHECK(pay(Payment{}).value == 4);
       }},
      {"without a window an event counts for ever",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {})};
           CHECK(pay(Payment{}).status == Status::applied);
           bench.advance(100 * 365 * 24h);
           check_outcome(pay.process(happened(bench.now() - 100'000h), Payment{}), Status::duplicate,
                         Action::acknowledge, 0);
         });
       }},
      {"the window an event was handled with decides, not that of a later consumer",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer hour{"pay.v1", bench.store, handler([] {}),
                                         ConsumerOptions{.window = 1h}};
           const IdempotentConsumer week{"pay.v1", bench.store, handler([] {}),
                                         ConsumerOptions{.window = 7 * 24h}};
           const IdempotentConsumer always{"pay.v1", bench.store, handler([] {})};
           CHECK(hour(Payment{.id = "hour"}).status == Status::applied);
           CHECK(week(Payment{.id = "week"}).status == Status::applied);
           CHECK(always(Payment{.id = "always"}).status == Status::applied);
           bench.advance(2h);
           CHECK(hour(Payment{.id = "week"}).status == Status::duplicate);
           CHECK(hour(Payment{.id = "always"}).status == Status::duplicate);
           CHECK(week(Payment{.id = "hour"}).status == Status::applied);
           bench.advance(2h);
           CHECK(hour(Payment{.id = "hour"}).status == Status::duplicate);
         });
       }},
      {"of many deliveries after the window's end, one runs",
       [](Bench& bench) {
         constexpr int calls = 6;
         std::atomic<int> starts = 0;
         const auto handler = [&](TransactionOn<Bench>& tx, const Payment& p) {
           ++starts;
           bench.write(tx, p.amount);
         };
         const ConsumerOptions options{.wait_limit = 60s, .window = 24h};
         const IdempotentConsumer one{"pay.v1", bench.store, handler, options};
         const IdempotentConsumer other{"pay.v1", bench.rival(), handler, options};
         CHECK(one(Payment{}).status == Status::applied);
         bench.advance(25h);
         std::latch all_called{calls};
         std::vector<std::future<Outcome<>>> outcomes;
         for (int i = 0; i < calls; ++i)
           outcomes.push_back(std::async(std::launch::async, [&, i] {
             all_called.arrive_and_wait();
             return i % 2 == 0 ? one(Payment{}) : other(Payment{});
           }));
         int applied = 0;
         int duplicates = 0;
         for (auto& waiting : outcomes) {
           const auto outcome = waiting.get();
           applied += outcome.status == Status::applied ? 1 : 0;
           duplicates += outcome.status == Status::duplicate ? 1 : 0;
         }
         CHECK(applied == 1);
         CHECK(duplicates == calls - 1);
         CHECK(starts == 2);
         CHECK(bench.sum() == 2);
       }},
      {"of many deliveries of a lease consumer after the window's end, one runs",
       [](Bench& bench) {
         constexpr int calls = 6;
         std::latch others_answered{calls - 1};
         std::atomic<int> starts = 0;
         const auto handler = [&](Lease&, const Payment&) {
           if (++starts == 2) others_answered.wait();
         };
         const ConsumerOptions options{.window = 24h};
         const IdempotentConsumer one{"mail.v1", bench.store, handler, options};
         const IdempotentConsumer other{"mail.v1", bench.rival(), handler, options};
         CHECK(one(Payment{}).status == Status::applied);
         bench.advance(25h);
         std::vector<std::future<Outcome<>>> outcomes;
         for (int i = 0; i < calls; ++i)
           outcomes.push_back(std::async(std::launch::async, [&, i] {
             auto outcome = i % 2 == 0 ? one(Payment{}) : other(Payment{});
             if (outcome.status == Status::in_progress) others_answered.count_down();
             return outcome;
           }));
         int applied = 0;
         for (auto& waiting : outcomes) applied += waiting.get().status == Status::applied ? 1 : 0;
         CHECK(applied == 1);
         CHECK(starts == 2);
       }},
      {"a handler that fails after the window's end leaves the event new",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([&] {
                                          if (++starts == 2) throw TransientError{"down"};
                                        }),
                                        ConsumerOptions{.window = 24h}};
           CHECK(pay(Payment{}).status == Status::applied);
           bench.advance(25h);
           check_outcome(pay(Payment{.amount = 2}), Status::deferred, Action::redeliver, 1);
           check_outcome(pay(Payment{.amount = 3}), Status::applied, Action::acknowledge, 1);
           check_outcome(pay(Payment{.amount = 3}), Status::duplicate, Action::acknowledge, 0);
         });
       }},
      {"an event older than the window is refused where its key is not there, and leaves nothing behind",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           int starts = 0;
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([&] { ++starts; }),
                                        ConsumerOptions{.window = 24h}, Immediate{} | MaxAttempts{5}};
           for (const Duration age : {Duration{24h + 1min}, Duration{1'000 * 24h}}) {
             const auto outcome = pay.process(happened(bench.now() - age), Payment{});
             check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
             CHECK(code_of(outcome) == code::beyond_window);
             CHECK(kind_of(outcome) == ErrorClass::permanent);
           }
           CHECK(starts == 0);
           CHECK(bench.keys() == 0);
           check_outcome(pay.process(happened(bench.now() - 23h - 59min), Payment{}), Status::applied,
                         Action::acknowledge, 1);
           check_outcome(pay.process(happened(bench.now() + 100h, {.id = "early"}), Payment{.id = "early"}),
                         Status::applied, Action::acknowledge, 1);
         });
       }},
      {"an event older than the window is a duplicate, or a mismatch, while its key counts",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {}),
                                        ConsumerOptions{.window = 24h}};
           CHECK(pay.process(happened(bench.now() - 20h), Payment{}).status == Status::applied);
           bench.advance(20h);
           const auto old = happened(bench.now() - 40h);
           check_outcome(pay.process(old, Payment{}), Status::duplicate, Action::acknowledge, 0);
           check_outcome(pay.process(happened(bench.now() - 40h, {.amount = 2}), Payment{}), Status::mismatch,
                         Action::dead_letter, 0);
           bench.advance(5h);
           const auto outcome = pay.process(happened(bench.now() - 45h), Payment{});
           check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
           CHECK(code_of(outcome) == code::beyond_window);
         });
       }},
      {"an event older than the window meets a live lease as any other does, and is refused when that ended",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.rival(), acting(world), at_once(),
                                       ConsumerOptions{.window = 24h}};
         Owner<Bench> owner{bench};
         check_outcome(mail.process(happened(bench.now() - 25h), Payment{}), Status::in_progress,
                       Action::redeliver, 0);
         bench.advance(61s);
         const auto outcome = mail.process(happened(bench.now() - 25h), Payment{});
         check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
         CHECK(code_of(outcome) == code::beyond_window);
         CHECK(owner.returns().status == Status::applied);
         CHECK(world.count() == 0);
       }},
      {"without a window no event is too old",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {})};
           check_outcome(pay.process(happened(std::chrono::system_clock::time_point::min()), Payment{}),
                         Status::applied, Action::acknowledge, 1);
         });
       }},
      {"the longest window and the oldest event are values like others",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const IdempotentConsumer pay{"pay.v1", bench.store, handler([] {}),
                                        ConsumerOptions{.window = Duration::max()}};
           check_outcome(pay.process(happened(bench.now() - 100'000h), Payment{}), Status::applied,
                         Action::acknowledge, 1);
           check_outcome(pay(Payment{}), Status::duplicate, Action::acknowledge, 0);
           const IdempotentConsumer brief{"brief.v1", bench.store, handler([] {}),
                                          ConsumerOptions{.window = 1h}};
           const auto first = happened(std::chrono::system_clock::time_point::min());
           CHECK(brief.process(first, Payment{}).status == Status::rejected);
           const auto last = happened(std::chrono::system_clock::time_point::max());
           check_outcome(brief.process(last, Payment{}), Status::applied, Action::acknowledge, 1);
         });
       }},
      {"the window of slow work counts from its completion",
       [](Bench& bench) {
         World world;
         const ConsumerOptions week{.lease = std::nullopt, .window = 7 * 24h};
         const IdempotentConsumer mail{"mail.v1", bench.rival(), acting(world), week};
         Owner<Bench> owner{bench, week};
         bench.advance(8 * 24h);
         CHECK(owner.returns().status == Status::applied);
         bench.advance(6 * 24h);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
         bench.advance(2 * 24h);
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"a worker's clock that is minutes off moves no window",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           const auto off = [](Duration by) {
             return Runtime{.clock = [by] { return std::chrono::steady_clock::now() + by; }};
           };
           const ConsumerOptions window{.window = 2min};
           const IdempotentConsumer late{"pay.v1", bench.store, handler([] {}), window, off(-3min)};
           const IdempotentConsumer early{"pay.v1", bench.rival(), handler([] {}), window, off(3min)};
           CHECK(late(Payment{}).status == Status::applied);
           bench.advance(1min);
           CHECK(early(Payment{}).status == Status::duplicate);
           bench.advance(2min);
           CHECK(late(Payment{}).status == Status::applied);
           CHECK(early(Payment{}).status == Status::duplicate);
         });
       }},
      {"a window that is zero or below is refused when the consumer is made",
       [](Bench& given) {
         in_each_mode(given, [](Bench& bench, auto handler) {
           for (const Duration none : {Duration{0}, Duration{-1}, Duration::min()})
             CHECK_THROWS_AS(
                 (IdempotentConsumer{"pay.v1", bench.store, handler([] {}), ConsumerOptions{.window = none}}),
                 ConfigurationError);
         });
       }},
  };
}

}  // namespace idem::tests
