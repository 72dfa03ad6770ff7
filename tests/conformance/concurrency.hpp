// SPDX-License-Identifier: MIT
#pragma once

// One event in several hands at once.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/bench.hpp"

namespace idem::tests {

/// Somebody else's call that holds the event "p-1" of "pay.v1" with its handler at work, until told how to end.
///
/// On the same store, or on the rival one: another process, for the consumer under test.
template <class Bench>
class Holder {
 public:
  Holder(Bench& bench, typename Bench::Store& store)
      : thread_{[this, &bench, &store] {
          const IdempotentConsumer pay{"pay.v1", store, [&](TransactionOn<Bench>& tx, const Payment& p) {
                                         bench.write(tx, p.amount);
                                         at_work_.count_down();
                                         if (told_.get_future().get() == End::roll_back)
                                           throw PermanentError{"held"};
                                       }};
          outcome_ = pay(Payment{});
        }} {
    at_work_.wait();
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    if (thread_.joinable()) static_cast<void>(end(End::roll_back));
  }

  enum class End { commit, roll_back };

  Outcome<> end(End how) {
    told_.set_value(how);
    thread_.join();
    return outcome_;
  }

 private:
  std::latch at_work_{1};
  std::promise<End> told_;
  Outcome<> outcome_;
  std::thread thread_;
};

/// Shows something with the event held on the same store, and again held on the rival one.
template <class Bench>
void for_each_holder(Bench& bench, const std::function<void(Bench&, typename Bench::Store&)>& show) {
  {
    INFO("held through the same store");
    show(bench, bench.store);
  }
  INFO("held through a store of another process");
  Bench fresh;
  show(fresh, fresh.rival());
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> concurrency_behaviours() {
  using namespace std::chrono_literals;
  using End = typename Holder<Bench>::End;
  return {
      {"fifty calls with one event at once start one handler",
       [](Bench& bench) {
         constexpr int calls = 50;
         std::latch all_called{calls};
         std::atomic<int> starts = 0;
         const ConsumerOptions patient{.wait_limit = 60s};
         const auto handler = [&](TransactionOn<Bench>& tx, const Payment& p) {
           ++starts;
           all_called.wait();
           bench.write(tx, p.amount);
         };
         const IdempotentConsumer one{"pay.v1", bench.store, handler, patient};
         const IdempotentConsumer other{"pay.v1", bench.rival(), handler, patient};
         std::vector<Outcome<>> outcomes(calls);
         std::vector<std::thread> threads;
         for (int i = 0; i < calls; ++i)
           threads.emplace_back([&, i] {
             all_called.count_down();
             outcomes[static_cast<std::size_t>(i)] = i % 5 == 0 ? other(Payment{}) : one(Payment{});
           });
         for (std::thread& thread : threads) thread.join();
         CHECK(starts == 1);
         int applied = 0;
         int duplicates = 0;
         for (const auto& outcome : outcomes) {
           applied += outcome.status == Status::applied ? 1 : 0;
           duplicates += outcome.status == Status::duplicate ? 1 : 0;
           CHECK(outcome.action == Action::acknowledge);
         }
         CHECK(applied == 1);
         CHECK(duplicates == calls - 1);
         CHECK(bench.sum() == 1);
         CHECK(bench.keys() == 1);
       }},
      {"a call that waits for a holder that commits is a duplicate",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           int starts = 0;
           Holder<Bench> holder{bench, store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
           std::latch calling{1};
           auto waiting = std::async(std::launch::async, [&] {
             calling.count_down();
             return pay(Payment{});
           });
           calling.wait();
           bench.until_waited_for(store);
           CHECK(holder.end(End::commit).status == Status::applied);
           check_outcome(waiting.get(), Status::duplicate, Action::acknowledge, 0);
           CHECK(starts == 0);
           CHECK(bench.sum() == 1);
         });
       }},
      {"a call that waits for a holder that commits something else is a mismatch",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           int starts = 0;
           Holder<Bench> holder{bench, store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
           auto waiting = std::async(std::launch::async, [&] { return pay(Payment{.amount = 99}); });
           bench.until_waited_for(store);
           CHECK(holder.end(End::commit).status == Status::applied);
           check_outcome(waiting.get(), Status::mismatch, Action::dead_letter, 0);
           CHECK(bench.sum() == 1);
         });
       }},
      {"a call that waits for a holder that rolls back takes over",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           int starts = 0;
           Holder<Bench> holder{bench, store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
           auto waiting = std::async(std::launch::async, [&] { return pay(Payment{}); });
           bench.until_waited_for(store);
           CHECK(holder.end(End::roll_back).status == Status::rejected);
           check_outcome(waiting.get(), Status::applied, Action::acknowledge, 1);
           CHECK(starts == 1);
           CHECK(bench.sum() == 1);
         });
       }},
      {"of three that wait for a holder that rolls back, one takes over",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           std::atomic<int> starts = 0;
           Holder<Bench> holder{bench, store};
           const auto handler = [&](TransactionOn<Bench>& tx, const Payment& p) {
             ++starts;
             bench.write(tx, p.amount);
           };
           const IdempotentConsumer one{"pay.v1", bench.store, handler, ConsumerOptions{.wait_limit = 60s}};
           const IdempotentConsumer other{"pay.v1", bench.rival(), handler,
                                          ConsumerOptions{.wait_limit = 60s}};
           std::vector<std::future<Outcome<>>> waiting;
           waiting.push_back(std::async(std::launch::async, [&] { return one(Payment{}); }));
           waiting.push_back(std::async(std::launch::async, [&] { return one(Payment{}); }));
           waiting.push_back(std::async(std::launch::async, [&] { return other(Payment{}); }));
           bench.until_waited_for(store);
           CHECK(holder.end(End::roll_back).status == Status::rejected);
           int applied = 0;
           for (auto& one_waiting : waiting) {
             const auto outcome = one_waiting.get();
             applied += outcome.status == Status::applied ? 1 : 0;
             CHECK(outcome.action == Action::acknowledge);
           }
           CHECK(applied == 1);
           CHECK(starts == 1);
           CHECK(bench.sum() == 1);
         });
       }},
      {"a holder that outlasts the wait leaves the event in progress, to be brought back no sooner than that",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           int starts = 0;
           Holder<Bench> holder{bench, store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts),
                                        ConsumerOptions{.wait_limit = 20ms},
                                        Redeliver{ConstantBackoff{1ms} | NoJitter{}}};
           const IdempotentConsumer later{"pay.v1", bench.store, paying(bench, starts),
                                          ConsumerOptions{.wait_limit = 20ms},
                                          Redeliver{ConstantBackoff{1min} | NoJitter{}}};
           const auto soon = pay(Payment{});
           check_outcome(soon, Status::in_progress, Action::redeliver, 0);
           CHECK(soon.redeliver_after == 20ms);
           const auto in_a_minute = later(Payment{});
           check_outcome(in_a_minute, Status::in_progress, Action::redeliver, 0);
           CHECK(in_a_minute.redeliver_after == 1min);
           CHECK(starts == 0);
           CHECK(holder.end(End::commit).status == Status::applied);
           CHECK(pay(Payment{}).status == Status::duplicate);
         });
       }},
      {"an event in progress is never rejected, however often it was delivered",
       [](Bench& bench) {
         int starts = 0;
         Holder<Bench> holder{bench, bench.rival()};
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts),
                                      ConsumerOptions{.wait_limit = 1ms},
                                      Redeliver{Intervals{1min} | NoJitter{}}};
         const auto outcome = pay(Payment{.delivery = 1'000});
         check_outcome(outcome, Status::in_progress, Action::redeliver, 0);
         CHECK(outcome.redeliver_after == 1min);
       }},
      {"a consumer that defers to a holder does not wait",
       [](Bench& given) {
         for_each_holder<Bench>(given, [](Bench& bench, typename Bench::Store& store) {
           int starts = 0;
           Holder<Bench> holder{bench, store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts),
                                        ConsumerOptions{.on_concurrent = Concurrent::defer, .wait_limit = 1h},
                                        Redeliver{ConstantBackoff{1s} | NoJitter{}}};
           const auto outcome = pay(Payment{});
           check_outcome(outcome, Status::in_progress, Action::redeliver, 0);
           CHECK(outcome.redeliver_after == 1h);
           CHECK(holder.end(End::roll_back).status == Status::rejected);
           check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
           check_outcome(pay(Payment{}), Status::duplicate, Action::acknowledge, 0);
         });
       }},
      {"a holder of one event does not hold up another",
       [](Bench& bench) {
         if constexpr (Bench::runs_at_once) {
           int starts = 0;
           Holder<Bench> holder{bench, bench.store};
           const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
           const IdempotentConsumer other{"other.v1", bench.store, paying(bench, starts)};
           CHECK(pay(Payment{.id = "p-2"}).status == Status::applied);
           CHECK(pay(Payment{.tenant = "other"}).status == Status::applied);
           CHECK(other(Payment{}).status == Status::applied);
         } else {
           SUCCEED("this store runs one handler at a time");
         }
       }},
      {"a stop ends the wait for a holder, and the event comes back without a delay",
       [](Bench& bench) {
         int starts = 0;
         Holder<Bench> holder{bench, bench.store};
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts),
                                      ConsumerOptions{.wait_limit = 1h}};
         std::stop_source stop;
         std::latch calling{1};
         auto waiting = std::async(std::launch::async, [&] {
           calling.count_down();
           return pay(Payment{}, stop.get_token());
         });
         calling.wait();
         stop.request_stop();
         const auto outcome = waiting.get();
         check_outcome(outcome, Status::deferred, Action::redeliver, 0);
         CHECK(outcome.redeliver_after == 0s);
         CHECK(outcome.failure->kind == ErrorClass::cancelled);
         CHECK(starts == 0);
       }},
      {"the longest wait there is waits",
       [](Bench& bench) {
         for (const Duration longest : {Duration::max(), Duration{std::chrono::hours{24 * 365 * 200}}}) {
           Bench fresh;
           int starts = 0;
           Holder<Bench> holder{fresh, fresh.store};
           const IdempotentConsumer pay{"pay.v1", fresh.store, paying(fresh, starts),
                                        ConsumerOptions{.wait_limit = longest}};
           auto waiting = std::async(std::launch::async, [&] { return pay(Payment{}); });
           // Not at once: a wait that wraps into the past ends before anybody commits.
           CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
           CHECK(holder.end(End::commit).status == Status::applied);
           check_outcome(waiting.get(), Status::duplicate, Action::acknowledge, 0);
         }
         CHECK(bench.keys() == 0);
       }},
      {"many threads with many events, each delivered by all of them, handle each once",
       [](Bench& bench) {
         constexpr int threads = 8;
         constexpr int events = 12;
         std::atomic<int> starts = 0;
         std::atomic<int> fails = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>& tx, const Payment& p) {
                                        bench.write(tx, p.amount);
                                        if (++fails % 3 == 0) throw TransientError{"now and then"};
                                        ++starts;
                                      },
                                      Immediate{} | MaxAttempts{100}, ConsumerOptions{.wait_limit = 60s}};
         std::atomic<int> applied = 0;
         std::atomic<int> other = 0;
         std::latch go{threads};
         std::vector<std::thread> workers;
         for (int t = 0; t < threads; ++t)
           workers.emplace_back([&, t] {
             go.arrive_and_wait();
             for (int i = 0; i < events; ++i) {
               const int event = t % 2 == 0 ? i : events - 1 - i;
               const auto outcome = pay(Payment{.id = "e-" + std::to_string(event)});
               if (outcome.status == Status::applied) ++applied;
               if (outcome.action != Action::acknowledge) ++other;
             }
           });
         for (std::thread& worker : workers) worker.join();
         CHECK(other == 0);
         CHECK(applied == events);
         CHECK(starts == events);
         CHECK(bench.sum() == events);
         CHECK(bench.keys() == events);
       }},
  };
}

}  // namespace idem::tests
