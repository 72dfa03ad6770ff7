// SPDX-License-Identifier: MIT
#pragma once

// Effects outside the store: made once, given back when they fail, and told apart from those in the store.

#include <chrono>
#include <functional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include "conformance/leasing.hpp"

namespace idem::tests {

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> lease_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"an effect outside the store is made once: what comes later is a duplicate",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world)};
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
         const IdempotentConsumer elsewhere{"mail.v1", bench.rival(), acting(world)};
         check_outcome(elsewhere(Payment{}), Status::duplicate, Action::acknowledge, 0);
         CHECK(world.count() == 1);
         CHECK(bench.keys() == 1);
         bench.advance(365 * 24h);
         check_outcome(elsewhere(Payment{}), Status::duplicate, Action::acknowledge, 0);
       }},
      {"a completed event that comes back saying something else is a mismatch, and the handler does not run",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world)};
         const IdempotentConsumer cold{"mail.v1", bench.rival(), acting(world)};
         const IdempotentConsumer lenient{"mail.v1", bench.rival(), acting(world),
                                          ConsumerOptions{.on_mismatch = Mismatch::acknowledge}};
         CHECK(mail(Payment{.amount = 10}).status == Status::applied);
         for (const auto& outcome : {mail(Payment{.amount = 99}), cold(Payment{.amount = 99})}) {
           check_outcome(outcome, Status::mismatch, Action::dead_letter, 0);
           CHECK(code_of(outcome) == code::mismatch);
           CHECK(contains(message_of(outcome), fingerprint_of(std::int64_t{10}).to_hex()));
           CHECK(contains(message_of(outcome), fingerprint_of(std::int64_t{99}).to_hex()));
         }
         check_outcome(lenient(Payment{.amount = 99}), Status::mismatch, Action::acknowledge, 0);
         CHECK(world.count() == 1);
       }},
      {"an event that another completes between two deliveries is a mismatch when it says something else",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world), at_once()};
         Owner<Bench> owner{bench};
         check_outcome(mail(Payment{.amount = 99}), Status::in_progress, Action::redeliver, 0);
         CHECK(owner.returns().status == Status::applied);
         check_outcome(mail(Payment{.amount = 99}), Status::mismatch, Action::dead_letter, 0);
         CHECK(world.count() == 0);
       }},
      {"a fingerprint that is not given is not compared, and the observer is told",
       [](Bench& bench) {
         World world;
         Recorder seen;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world), seen};
         CHECK(mail(Payment{}).status == Status::applied);
         check_outcome(mail.process({.id = "p-1"}, Payment{}), Status::duplicate, Action::acknowledge, 0);
         CHECK(seen.count(Observed::fingerprint_not_compared) == 1);
       }},
      {"while an owner works, others are told at once to come back when its lease ends",
       [](Bench& bench) {
         World world;
         const ConsumerOptions patient{.wait_limit = 1h};
         const ConsumerOptions hasty{.on_concurrent = Concurrent::defer};
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world), patient, at_once()};
         const IdempotentConsumer cold{"mail.v1", bench.rival(), acting(world), hasty, at_once()};
         const IdempotentConsumer later{"mail.v1", bench.store, acting(world), patient,
                                        Redeliver{ConstantBackoff{1h} | NoJitter{}}};
         Owner<Bench> owner{bench, {.lease = 10min, .heartbeat = false}};
         for (const auto& outcome : {mail(Payment{}), cold(Payment{})}) {
           check_outcome(outcome, Status::in_progress, Action::redeliver, 0);
           CHECK(outcome.redeliver_after <= 10min);
           CHECK(outcome.redeliver_after > 8min);
         }
         bench.advance(5min);
         const auto outcome = mail(Payment{});
         CHECK(outcome.redeliver_after <= 5min);
         CHECK(outcome.redeliver_after > 3min);
         CHECK(later(Payment{}).redeliver_after == 1h);
         CHECK(owner.returns().status == Status::applied);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
         CHECK(world.count() == 0);
       }},
      {"a delivery that is told of an owner is never rejected, however often it came",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world), each_second(2)};
         Owner<Bench> owner{bench};
         check_outcome(mail(Payment{.delivery = 1'000}), Status::in_progress, Action::redeliver, 0);
       }},
      {"a lease without a length is never taken over; others come back as Redeliver says",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world),
                                       Redeliver{ConstantBackoff{7s} | NoJitter{}}};
         Owner<Bench> owner{bench, {.lease = std::nullopt}};
         bench.advance(1'000 * 24h);
         const auto outcome = mail(Payment{});
         check_outcome(outcome, Status::in_progress, Action::redeliver, 0);
         CHECK(outcome.redeliver_after == 7s);
         owner.lease().extend(1ms);
         bench.advance(1h);
         check_outcome(mail(Payment{}), Status::in_progress, Action::redeliver, 0);
         CHECK(owner.returns().status == Status::applied);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
         CHECK(world.count() == 0);
       }},
      {"a lease without a length is free once its owner gives up",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world),
                                       ConsumerOptions{.lease = std::nullopt}};
         {
           Owner<Bench> owner{bench, {.lease = std::nullopt}};
           CHECK(owner.fails().status == Status::deferred);
         }
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"a call that gives up releases the event at once",
       [](Bench& bench) {
         World world;
         const std::vector<std::function<void()>> endings{
             [] { throw TransientError{"down"}; },         [] { throw TransientError{"down", 15s}; },
             [] { throw PermanentError{"never"}; },        [] { throw PreconditionFailed{"closed"}; },
             [] { throw std::runtime_error{"time-out"}; }, [] { throw 42; },
         };
         int n = 0;
         for (const auto& ending : endings) {
           CAPTURE(n);
           const Payment payment{.id = "p-" + std::to_string(n++)};
           const IdempotentConsumer failing_one{"mail.v1", bench.store,
                                                [&](Lease&, const Payment&) { ending(); },
                                                ConsumerOptions{.lease = 24h}};
           CHECK(failing_one(payment).failure);
           const IdempotentConsumer again{"mail.v1", bench.rival(), acting(world)};
           check_outcome(again(payment), Status::applied, Action::acknowledge, 1);
         }
         CHECK(world.count() == endings.size());
       }},
      {"a failing handler is tried again, deferred and rejected as one in the store is",
       [](Bench& bench) {
         int starts = 0;
         FakeTime time;
         const IdempotentConsumer mail{"mail.v1",
                                       bench.store,
                                       [&](Lease&, const Payment&) -> int {
                                         if (++starts % 3 != 0) throw TransientError{"down"};
                                         return starts;
                                       },
                                       ConstantBackoff{10ms} | NoJitter{} | MaxAttempts{2},
                                       each_second(2),
                                       time.runtime()};
         const auto first = mail(Payment{});
         check_outcome(first, Status::deferred, Action::redeliver, 2);
         CHECK(first.redeliver_after == 1s);
         check_outcome(mail(Payment{.id = "p-2"}), Status::applied, Action::acknowledge, 1);
         const auto last = mail(Payment{.id = "p-3", .delivery = 2});
         check_outcome(last, Status::rejected, Action::dead_letter, 2);
         CHECK(contains(message_of(last), "down"));
         const auto second = mail(Payment{.id = "p-1", .delivery = 2});
         check_outcome(second, Status::applied, Action::acknowledge, 1);
         CHECK(second.value == 6);
         CHECK(time.slept() == std::vector<Duration>{10ms, 10ms});
       }},
      {"a stop gives the event back at once, before the handler or between two attempts",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer again{"mail.v1", bench.rival(), acting(world)};
         std::stop_source stopped;
         stopped.request_stop();
         const auto before = again(Payment{}, stopped.get_token());
         check_outcome(before, Status::deferred, Action::redeliver, 0);
         CHECK(kind_of(before) == ErrorClass::cancelled);
         std::stop_source stop;
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease&, const Payment&) {
                                         stop.request_stop();
                                         throw TransientError{"down"};
                                       },
                                       Immediate{} | MaxAttempts{5}, ConsumerOptions{.lease = 24h}};
         const auto outcome = mail(Payment{}, stop.get_token());
         check_outcome(outcome, Status::deferred, Action::redeliver, 1);
         CHECK(outcome.redeliver_after == 0s);
         CHECK(kind_of(outcome) == ErrorClass::cancelled);
         check_outcome(again(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"a stop does not undo a handler that has done its work",
       [](Bench& bench) {
         std::stop_source stop;
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease&, const Payment&) { stop.request_stop(); }};
         check_outcome(mail(Payment{}, stop.get_token()), Status::applied, Action::acknowledge, 1);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
       }},
      {"the lease is kept between the attempts of a call, with its token",
       [](Bench& bench) {
         World world;
         World others;
         FakeTime time;
         const IdempotentConsumer other{"mail.v1", bench.rival(), acting(others), at_once()};
         int looked = 0;
         time.on_sleep = [&] {
           ++looked;
           check_outcome(other(Payment{}), Status::in_progress, Action::redeliver, 0);
         };
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease& lease, const Payment& p) {
                                         world.act(lease, p);
                                         if (world.count() < 3) throw TransientError{"down"};
                                       },
                                       ConstantBackoff{1s} | NoJitter{} | MaxAttempts{3}, time.runtime()};
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 3);
         CHECK(looked == 2);
         CHECK(others.count() == 0);
         CHECK(world.deeds()[0].token == world.deeds()[2].token);
       }},
      {"each owner's own end decides, though consumers of one table have different leases",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer brief{"mail.v1", bench.rival(), acting(world), at_once(),
                                        ConsumerOptions{.lease = 1s}};
         const IdempotentConsumer lengthy{"fax.v1", bench.rival(), acting(world), at_once(),
                                          ConsumerOptions{.lease = 24h}};
         const Key fax{"", "fax.v1", "p-1"};
         static_cast<void>(must_acquire(bench.store, {.key = fax}, 10s));
         Owner<Bench> owner{bench, {.lease = 1h, .heartbeat = false}};
         bench.advance(11s);
         check_outcome(brief(Payment{}), Status::in_progress, Action::redeliver, 0);
         check_outcome(lengthy(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"the idempotency key is printable, short, and that of its key alone",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.store, acting(world)};
         const IdempotentConsumer fax{"fax.v1", bench.store, acting(world)};
         CHECK(mail(Payment{.id = "a"}).status == Status::applied);
         CHECK(mail(Payment{.id = "a", .tenant = "t"}).status == Status::applied);
         CHECK(fax(Payment{.id = "a"}).status == Status::applied);
         CHECK(mail(Payment{.id = "\xC3\xA9 'long' " + std::string(400, 'x')}).status == Status::applied);
         const auto deeds = world.deeds();
         for (std::size_t i = 0; i < deeds.size(); ++i) {
           CHECK(deeds[i].idempotency_key.size() == 64);
           CHECK(deeds[i].idempotency_key.find_first_not_of("0123456789abcdef") == std::string::npos);
           for (std::size_t j = 0; j < i; ++j) CHECK(deeds[i].idempotency_key != deeds[j].idempotency_key);
         }
         // Providers keep it for days, and releases come in between: it never changes.
         CHECK(deeds[0].idempotency_key ==
               fingerprint_of(std::string{}, std::string{"mail.v1"}, std::string{"a"}).to_hex());
       }},
      {"a ConfigurationError of the handler is let out, and the event is free",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{
             "mail.v1", bench.store,
             [](Lease&, const Payment&) { throw ConfigurationError{"a nested consumer's"}; },
             Immediate{} | MaxAttempts{5}, ConsumerOptions{.lease = 24h}};
         CHECK_THROWS_AS(static_cast<void>(mail(Payment{})), ConfigurationError);
         const IdempotentConsumer again{"mail.v1", bench.rival(), acting(world)};
         check_outcome(again(Payment{}), Status::applied, Action::acknowledge, 1);
       }},
      {"a handler in the store meets what is leased, and what was completed under a lease",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer in_store{"mail.v1", bench.rival(), paying(bench, starts), at_once()};
         Owner<Bench> owner{bench};
         const auto met = in_store(Payment{});
         check_outcome(met, Status::in_progress, Action::redeliver, 0);
         CHECK(met.redeliver_after > 30s);
         CHECK(owner.returns().status == Status::applied);
         check_outcome(in_store(Payment{}), Status::duplicate, Action::acknowledge, 0);
         check_outcome(in_store(Payment{.amount = 2}), Status::mismatch, Action::dead_letter, 0);
         CHECK(starts == 0);
       }},
      {"a handler in the store takes over a lease that ended, and a lease handler finds what it did",
       [](Bench& bench) {
         int starts = 0;
         World world;
         const IdempotentConsumer in_store{"mail.v1", bench.rival(), paying(bench, starts)};
         const IdempotentConsumer mail{"mail.v1", bench.rival(), acting(world)};
         Owner<Bench> owner{bench};
         bench.advance(61s);
         check_outcome(in_store(Payment{}), Status::applied, Action::acknowledge, 1);
         check_outcome(owner.returns(), Status::in_progress, Action::redeliver, 1);
         check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
         check_outcome(mail(Payment{.amount = 2}), Status::mismatch, Action::dead_letter, 0);
         CHECK(bench.sum() == 1);
         CHECK(world.count() == 0);
       }},
      {"a lease that is zero or below is refused when the consumer is made",
       [](Bench& bench) {
         World world;
         for (const Duration none : {Duration{0}, Duration{-1}, Duration::min()})
           CHECK_THROWS_AS(
               (IdempotentConsumer{"mail.v1", bench.store, acting(world), ConsumerOptions{.lease = none}}),
               ConfigurationError);
       }},
  };
}

}  // namespace idem::tests
