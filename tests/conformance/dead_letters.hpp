// SPDX-License-Identifier: MIT
#pragma once

// What becomes of dead letters, whatever keeps them. Beside what a Bench has:
//
//   Sink& sink()                               models DeadLetterSink, beside the store's handlers
//   std::vector<DeadLetterRecord> letters()    all that is kept, oldest first

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

#include "conformance/bench.hpp"
#include "support/catch.hpp"

namespace idem::tests::dying {

/// A message of a group that keeps its order; what is said of it ends it.
struct Job {
  std::string id;
  std::int64_t amount = 1;
  std::string group = {};
  std::string tenant = {};
  std::int64_t delivery = 1;
};

[[nodiscard]] inline Event event_of(const Job& job) {
  if (job.id == "no event") throw std::runtime_error{"no event"};
  return {.tenant = job.tenant,
          .id = job.id,
          .fingerprint = job.amount == 0 ? Fingerprint{} : fingerprint_of(job.amount),
          .ordering_key = job.group,
          .delivery_count = job.delivery,
          .occurred_at = std::chrono::system_clock::time_point{std::chrono::seconds{1'700'000'000}}};
}

/// Makes the effect, and then dies of `why` unless that is empty.
template <class Bench>
[[nodiscard]] auto dying_of(Bench& bench, const std::string& why) {
  return [&bench, &why](TransactionOn<Bench>& tx, const Job& job) {
    bench.write(tx, job.amount);
    if (!why.empty() && job.id != "good") throw PermanentError{why};
  };
}

template <class R>
void check_told(const Outcome<R>& outcome, Status status, Action action) {
  CHECK(to_string(outcome.status) == to_string(status));
  CHECK(to_string(outcome.action) == to_string(action));
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> dead_letter_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"a rejected event is acknowledged, and its record outlives the handler's transaction",
       [](Bench& bench) {
         const std::string why = "no such account";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         const auto outcome = pay(Job{.id = "j-1", .group = "g", .tenant = "acme", .delivery = 4});
         check_told(outcome, Status::rejected, Action::acknowledge);
         CHECK(outcome.failure.value().message == why);
         CHECK(bench.sum() == 0);
         CHECK(bench.keys() == 0);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 1);
         CHECK(letters[0].tenant == "acme");
         CHECK(letters[0].consumer == "pay.v1");
         CHECK(letters[0].event_id == "j-1");
         CHECK(letters[0].fingerprint == fingerprint_of(std::int64_t{1}));
         CHECK(letters[0].recorded == 1);
         CHECK(letters[0].first.kind == ErrorClass::permanent);
         CHECK(letters[0].first.message == why);
         CHECK(letters[0].last.message == why);
         CHECK(letters[0].attempts == 1);
         CHECK(letters[0].delivery_count == 4);
         CHECK(letters[0].ordering_key == "g");
         CHECK((letters[0].occurred_at == event_of(Job{.id = "j-1"}).occurred_at));
         CHECK((letters[0].first_at == letters[0].last_at));
       }},
      {"an event that dies again is counted in its record: the first cause stays, the last is replaced",
       [](Bench& bench) {
         std::string why = "first";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         check_told(pay(Job{.id = "j-1", .delivery = 1}), Status::rejected, Action::acknowledge);
         why = "second";
         check_told(pay(Job{.id = "j-1", .delivery = 2}), Status::rejected, Action::acknowledge);
         why = "third";
         check_told(pay(Job{.id = "j-1", .delivery = 3}), Status::rejected, Action::acknowledge);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 1);
         CHECK(letters[0].recorded == 3);
         CHECK(letters[0].first.message == "first");
         CHECK(letters[0].last.message == "third");
         CHECK(letters[0].delivery_count == 3);
         CHECK((letters[0].first_at <= letters[0].last_at));
       }},
      {"an open record never holds up a delivery",
       [](Bench& bench) {
         std::string why = "a bug";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         CHECK(pay(Job{.id = "j-1"}).status == Status::rejected);
         why.clear();
         check_told(pay(Job{.id = "j-1"}), Status::applied, Action::acknowledge);
         check_told(pay(Job{.id = "j-1"}), Status::duplicate, Action::acknowledge);
         CHECK(bench.sum() == 1);
         CHECK(bench.letters().size() == 1);
       }},
      {"a mismatch is recorded beside the good event, and shadows it in neither order",
       [](Bench& bench) {
         std::string why = "a bug";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         CHECK(pay(Job{.id = "j-1", .amount = 1}).status == Status::rejected);
         why.clear();
         CHECK(pay(Job{.id = "j-1", .amount = 1}).status == Status::applied);
         check_told(pay(Job{.id = "j-1", .amount = 2}), Status::mismatch, Action::acknowledge);
         check_told(pay(Job{.id = "j-1", .amount = 2}), Status::mismatch, Action::acknowledge);
         check_told(pay(Job{.id = "j-1", .amount = 1}), Status::duplicate, Action::acknowledge);
         CHECK(bench.sum() == 1);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 2);
         CHECK(letters[0].last.message == "a bug");
         CHECK(letters[0].recorded == 1);
         CHECK(letters[1].last.code == code::mismatch);
         CHECK(letters[1].fingerprint == fingerprint_of(std::int64_t{2}));
         CHECK(letters[1].recorded == 2);
         CHECK(letters[1].attempts == 0);
       }},
      {"a mismatch that is to be acknowledged is not recorded",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, {}), bench.sink(),
                                      ConsumerOptions{.on_mismatch = Mismatch::acknowledge}};
         CHECK(pay(Job{.id = "good"}).status == Status::applied);
         check_told(pay(Job{.id = "good", .amount = 2}), Status::mismatch, Action::acknowledge);
         CHECK(bench.letters().empty());
       }},
      {"nothing is recorded of what is done, or comes back",
       [](Bench& bench) {
         bool down = true;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>&, const Job&) {
                                        if (down) throw TransientError{"down"};
                                      },
                                      bench.sink()};
         check_told(pay(Job{.id = "j-1"}), Status::deferred, Action::redeliver);
         down = false;
         CHECK(pay(Job{.id = "j-1"}).status == Status::applied);
         CHECK(pay(Job{.id = "j-1"}).status == Status::duplicate);
         CHECK(bench.letters().empty());
       }},
      {"an event that is given up after its deliveries is recorded once, with the attempts of the last call",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1",
                                      bench.store,
                                      [](TransactionOn<Bench>&, const Job&) { throw TransientError{"down"}; },
                                      Immediate{} | MaxAttempts{3},
                                      Redeliver{Immediate{} | MaxAttempts{2}},
                                      bench.sink()};
         check_told(pay(Job{.id = "j-1", .delivery = 1}), Status::deferred, Action::redeliver);
         check_told(pay(Job{.id = "j-1", .delivery = 2}), Status::rejected, Action::acknowledge);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 1);
         CHECK(letters[0].recorded == 1);
         CHECK(letters[0].attempts == 3);
         CHECK(letters[0].last.kind == ErrorClass::transient);
       }},
      {"a message without a valid key stays the transport's dead letter",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, {}), bench.sink()};
         for (const std::string id : {"", " ", "no event"}) {
           const auto outcome = pay(Job{.id = id});
           check_told(outcome, Status::rejected, Action::dead_letter);
           const auto report = pay.process_batch(std::vector<Job>{{.id = id}});
           check_told(report.outcomes.at(0), Status::rejected, Action::dead_letter);
         }
         CHECK(bench.letters().empty());
       }},
      {"tenants, consumers, events and what they say have records of their own",
       [](Bench& bench) {
         const std::string why = "no";
         for (const char* name : {"a", "ab"}) {
           const IdempotentConsumer pay{name, bench.store, dying_of(bench, why), bench.sink()};
           for (const char* tenant : {"", "a"})
             for (const char* id : {"bc", "c"})
               for (const std::int64_t amount : {0, 1, 2})
                 for (int i = 0; i < 2; ++i)
                   CHECK(pay(Job{.id = id, .amount = amount, .tenant = tenant}).action ==
                         Action::acknowledge);
         }
         const auto letters = bench.letters();
         CHECK(letters.size() == 24);
         CHECK(
             std::all_of(letters.begin(), letters.end(), [](const auto& one) { return one.recorded == 2; }));
       }},
      {"three workers that reject one event at once make one record",
       [](Bench& bench) {
         const std::string why = "no";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         const IdempotentConsumer rival{"pay.v1", bench.rival(), dying_of(bench, why), bench.sink()};
         std::latch all{3};
         std::atomic<int> acknowledged = 0;
         std::vector<std::thread> workers;
         for (int worker = 0; worker < 3; ++worker)
           workers.emplace_back([&, worker] {
             all.arrive_and_wait();
             const auto outcome = worker == 0 ? pay(Job{.id = "j-1"}) : rival(Job{.id = "j-1"});
             if (outcome.action == Action::acknowledge) ++acknowledged;
           });
         for (auto& worker : workers) worker.join();
         CHECK(acknowledged == 3);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 1);
         CHECK(letters[0].recorded == 3);
       }},
      {"the texts of a cause are held to 1,000 bytes, and are text whatever the handler said",
       [](Bench& bench) {
         std::string why;
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         const std::string euro = "\u20AC";
         for (int i = 0; i < 8'192 / 3; ++i) why += euro;
         CHECK(pay(Job{.id = "long"}).action == Action::acknowledge);
         why = std::string(1'000, 'x');
         CHECK(pay(Job{.id = "full"}).action == Action::acknowledge);
         why += 'x';
         CHECK(pay(Job{.id = "full"}).action == Action::acknowledge);
         why = std::string{"a\xE9'\\c\xFF"} + euro;
         CHECK(pay(Job{.id = "odd", .group = std::string{"g\0\xE9", 3}}).action == Action::acknowledge);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 3);
         const std::string& cut = letters[0].first.message;
         CHECK(cut.size() <= 1'000);
         CHECK(cut.size() > 990);
         CHECK(cut.substr(0, 6) == euro + euro);
         CHECK(cut.substr(cut.size() - 3) == "\u2026");
         CHECK(letters[1].first.message == std::string(1'000, 'x'));
         CHECK(letters[1].last.message == std::string(997, 'x') + "\u2026");
         CHECK(letters[2].first.message == "a\uFFFD'\\c\uFFFD\u20AC");
         CHECK(letters[2].last.message == letters[2].first.message);
         CHECK(letters[2].ordering_key == "g\uFFFD\uFFFD");
         const Key key{"", "pay.v1", "nul"};
         const Failure failure{ErrorClass::permanent, std::string{"c\0d", 3}, std::string{"m\0n", 3}};
         bench.sink().record(DeadLetter{key, Event{}, failure});
         const auto last = bench.letters().back();
         CHECK(last.first.code == "c\uFFFDd");
         CHECK(last.first.message == "m\uFFFDn");
       }},
      {"in a batch each message has its own end, and what was recorded holds up nothing",
       [](Bench& bench) {
         const std::string why = "no";
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, why), bench.sink()};
         CHECK(pay(Job{.id = "good"}).status == Status::applied);
         const auto report = pay.process_batch(std::vector<Job>{{.id = "bad", .group = "g"},
                                                                {.id = "good", .group = "g"},
                                                                {.id = "good", .amount = 2, .group = "g"},
                                                                {.id = "worse", .group = "g"}});
         CHECK(report.all_acknowledged());
         REQUIRE(report.outcomes.size() == 4);
         CHECK(report.outcomes[0].status == Status::rejected);
         CHECK(report.outcomes[1].status == Status::duplicate);
         CHECK(report.outcomes[2].status == Status::mismatch);
         CHECK(report.outcomes[3].status == Status::rejected);
         const auto letters = bench.letters();
         CHECK(letters.size() == 3);
         CHECK(
             std::all_of(letters.begin(), letters.end(), [](const auto& one) { return one.recorded == 1; }));
       }},
      {"a mismatch found by a batch whose transaction is committed is recorded once",
       [](Bench& bench) {
         const std::string nothing;
         const IdempotentConsumer pay{"pay.v1", bench.store, dying_of(bench, nothing), bench.sink()};
         CHECK(pay(Job{.id = "j-1"}).status == Status::applied);
         const auto report =
             pay.process_batch(std::vector<Job>{{.id = "j-1", .amount = 2}, {.id = "j-2"}, {.id = "j-3"}});
         CHECK(report.all_acknowledged());
         CHECK(report.outcomes.at(0).status == Status::mismatch);
         CHECK(report.outcomes.at(2).status == Status::applied);
         CHECK(bench.sum() == 3);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 1);
         CHECK(letters[0].recorded == 1);
       }},
      {"an event whose effect is outside the store is recorded when its lease is over",
       [](Bench& bench) {
         bool broken = true;
         int starts = 0;
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease&, const Job&) {
                                         ++starts;
                                         if (broken) throw PermanentError{"no such address"};
                                       },
                                       bench.sink()};
         check_told(mail(Job{.id = "j-1"}), Status::rejected, Action::acknowledge);
         broken = false;
         check_told(mail(Job{.id = "j-1"}), Status::applied, Action::acknowledge);
         check_told(mail(Job{.id = "j-1", .amount = 2}), Status::mismatch, Action::acknowledge);
         CHECK(starts == 2);
         const auto letters = bench.letters();
         REQUIRE(letters.size() == 2);
         CHECK(letters[0].last.message == "no such address");
         CHECK(letters[1].last.code == code::mismatch);
       }},
  };
}

}  // namespace idem::tests::dying
