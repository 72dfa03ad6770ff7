// SPDX-License-Identifier: MIT
#pragma once

// How long a lease lasts, what keeps it alive, and what becomes of an owner who was too slow.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "conformance/leasing.hpp"

namespace idem::tests {

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> takeover_behaviours() {
  using namespace std::chrono_literals;
  return {
      {"a lease that ended is taken over with a greater token and the same idempotency key",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer mail{"mail.v1", bench.rival(), acting(world), at_once()};
         Owner<Bench> owner{bench};
         bench.advance(59s);
         check_outcome(mail(Payment{}), Status::in_progress, Action::redeliver, 0);
         bench.advance(2s);
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
         REQUIRE(world.count() == 1);
         CHECK(world.deeds()[0].token > owner.lease().token());
         CHECK(world.deeds()[0].idempotency_key == owner.lease().idempotency_key());
       }},
      {"an owner that wakes after a takeover cannot complete, and learns that its lease is lost",
       [](Bench& bench) {
         const IdempotentConsumer mail{"mail.v1", bench.rival(),
                                       [](Lease&, const Payment&) { return std::string{"successor"}; }};
         Owner<Bench> owner{bench};
         bench.advance(61s);
         CHECK(mail(Payment{}).value == "successor");
         const auto outcome = owner.returns();
         check_outcome(outcome, Status::in_progress, Action::redeliver, 1);
         CHECK(code_of(outcome) == code::lease_lost);
         CHECK_FALSE(outcome.value);
         const auto again = mail(Payment{});
         check_outcome(again, Status::duplicate, Action::acknowledge, 0);
         CHECK(again.value == "successor");
       }},
      {"an owner that wakes after a takeover leaves its successor's lease alone, whatever it does",
       [](Bench& bench) {
         for (const int how : {0, 1, 2}) {
           CAPTURE(how);
           Bench fresh;
           World world;
           const IdempotentConsumer other{"mail.v1", fresh.store, acting(world), at_once()};
           Owner<Bench> owner{fresh};
           fresh.advance(61s);
           Owner<Bench> successor{fresh.rival(), {.lease = 10min, .heartbeat = false}};
           CHECK_FALSE(owner.lease().lost());
           if (how == 1) {
             owner.lease().extend(24h);
             CHECK(owner.lease().lost());
           }
           const auto outcome = how == 0 ? owner.returns() : owner.fails();
           if (how < 2) {
             check_outcome(outcome, Status::in_progress, Action::redeliver, 1);
             CHECK(code_of(outcome) == code::lease_lost);
           } else {
             check_outcome(outcome, Status::deferred, Action::redeliver, 1);
           }
           const auto between = other(Payment{});
           check_outcome(between, Status::in_progress, Action::redeliver, 0);
           CHECK(between.redeliver_after > 8min);
           CHECK(between.redeliver_after <= 10min);
           CHECK(successor.returns().status == Status::applied);
           CHECK(world.count() == 0);
         }
         static_cast<void>(bench);
       }},
      {"an owner whose lease is known to be lost does not start its handler again",
       [](Bench& bench) {
         World world;
         int starts = 0;
         const IdempotentConsumer other{"mail.v1", bench.rival(), acting(world)};
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease& lease, const Payment&) {
                                         ++starts;
                                         bench.advance(61s);
                                         CHECK(other(Payment{}).status == Status::applied);
                                         lease.extend(1min);
                                         throw TransientError{"too late"};
                                       },
                                       Immediate{} | MaxAttempts{5}, ConsumerOptions{.heartbeat = false}};
         const auto outcome = mail(Payment{});
         check_outcome(outcome, Status::in_progress, Action::redeliver, 1);
         CHECK(code_of(outcome) == code::lease_lost);
         CHECK(starts == 1);
         check_outcome(other(Payment{}), Status::duplicate, Action::acknowledge, 0);
       }},
      {"a lease that ended and that nobody took is completed all the same",
       [](Bench& bench) {
         Owner<Bench> owner{bench};
         bench.advance(24h);
         CHECK_FALSE(owner.lease().lost());
         check_outcome(owner.returns(), Status::applied, Action::acknowledge, 1);
       }},
      {"a grant that was taken over, released and taken again, or completed by another is refused for ever",
       [](Bench& bench) {
         const Key key{"", "c", "e"};
         const Claim claim{.key = key};
         const Grant old = must_acquire(bench.store, claim, 60s);
         const auto check_refused = [&] {
           CHECK(is<Lost>(bench.store.extend(claim, old, 1h)));
           CHECK(is<Lost>(bench.store.complete(claim, old, "old")));
           CHECK(is<Lost>(bench.store.release(claim, old)));
         };
         bench.advance(61s);
         const Grant second = must_acquire(bench.rival(), claim, 60s);
         check_refused();
         CHECK(rest_of_lease(bench, key) > 30s);
         CHECK(is<Kept>(bench.rival().release(claim, second)));
         check_refused();
         const Grant third = must_acquire(bench.rival(), claim, 60s);
         check_refused();
         CHECK(is<Lost>(bench.store.release(claim, second)));
         CHECK(rest_of_lease(bench, key) > 30s);
         CHECK(is<Kept>(bench.rival().complete(claim, third, "third")));
         check_refused();
         const Acquired found = bench.store.acquire(claim, 60s);
         REQUIRE(is<Found>(found));
         CHECK(std::get<Found>(found).value == "third");
         // A token of the past with the claim of today, and the other way round.
         CHECK(is<Lost>(bench.store.complete(claim, Grant{third.claim, old.fence}, "x")));
         CHECK(is<Lost>(bench.store.complete(claim, Grant{old.claim, third.fence}, "x")));
         CHECK(old.fence < second.fence);
         CHECK(second.fence < third.fence);
       }},
      {"completing twice with one grant keeps the first value; extending or releasing afterwards does nothing",
       [](Bench& bench) {
         const Key key{"", "c", "e"};
         const Claim claim{.key = key};
         const Grant grant = must_acquire(bench.store, claim, 60s);
         CHECK(is<Kept>(bench.store.complete(claim, grant, "first")));
         CHECK(is<Kept>(bench.rival().complete(claim, grant, "second")));
         CHECK(is<Lost>(bench.store.extend(claim, grant, 1ms)));
         CHECK(is<Lost>(bench.store.release(claim, grant)));
         bench.advance(24h);
         const Acquired found = bench.rival().acquire(claim, 60s);
         REQUIRE(is<Found>(found));
         CHECK(std::get<Found>(found).value == "first");
       }},
      {"tokens grow for ever: over release, takeover and completion, over keys, and when a key is forgotten",
       [](Bench& bench) {
         std::uint64_t last = 0;
         const auto take = [&](const std::string& id, auto& store) {
           const Key key{"t", "c", id};
           const Grant grant = must_acquire(store, {.key = key}, 60s);
           CHECK(grant.fence > last);
           last = grant.fence;
           return grant;
         };
         const Key a{"t", "c", "a"};
         CHECK(is<Kept>(bench.store.release({.key = a}, take("a", bench.store))));
         take("b", bench.rival());
         CHECK(is<Kept>(bench.store.release({.key = a}, take("a", bench.store))));
         take("a", bench.rival());
         bench.advance(61s);
         const Grant completed = take("a", bench.store);
         CHECK(is<Kept>(bench.store.complete({.key = a}, completed, {})));
         take("c", bench.rival());
         bench.forget();
         take("d", bench.store);
         bench.forget();
         if (bench.keys() == 0) take("a", bench.rival());
       }},
      {"thousands of extensions leave an end no later than one lease from now",
       [](Bench& bench) {
         const Key key{"", "c", "e"};
         const Claim claim{.key = key};
         const Grant grant = must_acquire(bench.store, claim, 60s);
         int kept = 0;
         for (int i = 0; i < Bench::many; ++i)
           kept += is<Kept>(bench.store.extend(claim, grant, 60s)) ? 1 : 0;
         CHECK(kept == Bench::many);
         const auto rest = rest_of_lease(bench, key);
         REQUIRE(rest);
         CHECK(*rest <= 60s);
         CHECK(*rest > 30s);
       }},
      {"a handler moves the end of its lease, further away or nearer",
       [](Bench& bench) {
         const Key key{"", "mail.v1", "p-1"};
         Owner<Bench> owner{bench};
         owner.lease().extend(1h);
         CHECK(rest_of_lease(bench, key) > 59min);
         CHECK(rest_of_lease(bench, key) <= 1h);
         owner.lease().extend(5min);
         CHECK(rest_of_lease(bench, key) <= 5min);
         CHECK(rest_of_lease(bench, key) > 4min);
         owner.lease().extend(Duration::max());
         CHECK(rest_of_lease(bench, key) > 200 * 365 * 24h);
         CHECK_FALSE(owner.lease().lost());
         CHECK(owner.returns().status == Status::applied);
       }},
      {"an extension that is zero or below is refused, and changes nothing",
       [](Bench& bench) {
         const Key key{"", "mail.v1", "p-1"};
         Owner<Bench> owner{bench};
         for (const Duration none : {Duration{0}, Duration{-1}, Duration{-1h}, Duration::min()})
           CHECK_THROWS_AS(owner.lease().extend(none), std::invalid_argument);
         CHECK_FALSE(owner.lease().lost());
         CHECK(rest_of_lease(bench, key) > 30s);
       }},
      {"a lease shorter than any work is a lease, and the longest one too",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer brief{"mail.v1", bench.store, acting(world),
                                        ConsumerOptions{.lease = 1ns, .heartbeat = false}};
         check_outcome(brief(Payment{}), Status::applied, Action::acknowledge, 1);
         const Key key{"", "c", "e"};
         for (int i = 0; i < 3; ++i) static_cast<void>(must_acquire(bench.store, {.key = key}, 1ns));
         const IdempotentConsumer lengthy{"mail.v1", bench.store, acting(world),
                                          ConsumerOptions{.lease = Duration::max()}};
         check_outcome(lengthy(Payment{.id = "p-2"}), Status::applied, Action::acknowledge, 1);
       }},
      {"a worker's clock that is minutes off changes nothing",
       [](Bench& bench) {
         World world;
         for (const Duration off : {Duration{-3min}, Duration{3min}}) {
           Bench fresh;
           const auto runtime = [off] {
             return Runtime{.clock = [off] { return std::chrono::steady_clock::now() + off; }};
           };
           const IdempotentConsumer mail{"mail.v1", fresh.rival(), acting(world), at_once(), runtime()};
           Owner<Bench> owner{fresh};
           const auto outcome = mail(Payment{});
           check_outcome(outcome, Status::in_progress, Action::redeliver, 0);
           CHECK(outcome.redeliver_after > 30s);
           CHECK(outcome.redeliver_after <= 60s);
           fresh.advance(61s);
           check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
         }
         static_cast<void>(bench);
       }},
      {"the heartbeat keeps a lease alive that is shorter than the work",
       [](Bench& bench) {
         World world;
         Signal signal;
         int extended = 0;
         Watched<typename Bench::Store> store{bench.store};
         store.after_extend = [&] { signal.tell([&] { ++extended; }); };
         const IdempotentConsumer other{"mail.v1", bench.rival(), acting(world), at_once()};
         const IdempotentConsumer mail{
             "mail.v1", store,
             [&](Lease& lease, const Payment&) {
               for (int beats = 1; beats <= 4; ++beats) {  // more than a lease's time
                 signal.wait([&] { return extended >= beats; });
                 check_outcome(other(Payment{}), Status::in_progress, Action::redeliver, 0);
               }
               CHECK_FALSE(lease.lost());
             },
             ConsumerOptions{.lease = 2s}};
         check_outcome(mail(Payment{}), Status::applied, Action::acknowledge, 1);
         CHECK(world.count() == 0);
       }},
      {"without a heartbeat nothing extends a lease",
       [](Bench& bench) {
         int extended = 0;
         Watched<typename Bench::Store> store{bench.store};
         store.before_extend = [&] { ++extended; };
         const auto slow = [](Lease&, const Payment&) {
           Signal never;
           CHECK_FALSE(never.wait_for(50ms, [] { return false; }));
         };
         const IdempotentConsumer off{"off.v1", store, slow,
                                      ConsumerOptions{.lease = 3ms, .heartbeat = false}};
         const IdempotentConsumer endless{"endless.v1", store, slow, ConsumerOptions{.lease = std::nullopt}};
         CHECK(off(Payment{}).status == Status::applied);
         CHECK(endless(Payment{}).status == Status::applied);
         CHECK(extended == 0);
       }},
      {"a heartbeat that is due as the handler ends is waited for: no later verb overlaps it, and none follows",
       [](Bench& bench) {
         for (const bool fails : {false, true}) {
           Bench fresh;
           Signal signal;
           bool extending = false;
           bool ending = false;
           int extended = 0;
           int overlaps = 0;
           bool over = false;
           Watched<typename Bench::Store> store{fresh.store};
           store.before_extend = [&] {
             signal.tell([&] {
               extending = true;
               ++extended;
               if (over) ++overlaps;
             });
             // The verb that must not come yet has this long to come.
             static_cast<void>(signal.wait_for(50ms, [&] { return ending; }));
           };
           store.after_extend = [&] { signal.tell([&] { extending = false; }); };
           store.before_complete = store.before_release = [&] {
             signal.tell([&] {
               ending = true;
               if (extending) ++overlaps;
             });
           };
           const IdempotentConsumer mail{"mail.v1", store,
                                         [&](Lease&, const Payment&) {
                                           signal.wait([&] { return extending; });
                                           if (fails) throw TransientError{"down"};
                                         },
                                         ConsumerOptions{.lease = 60ms}};
           CHECK(mail(Payment{}).status == (fails ? Status::deferred : Status::applied));
           signal.tell([&] { over = true; });
           const int before = extended;
           CHECK(overlaps == 0);
           CHECK_FALSE(signal.wait_for(100ms, [&] { return extended > before; }));
         }
         static_cast<void>(bench);
       }},
      {"the heartbeat finds out that the lease was taken over",
       [](Bench& bench) {
         World world;
         const IdempotentConsumer other{"mail.v1", bench.rival(), acting(world), at_once()};
         std::latch at_work{1};
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease& lease, const Payment&) {
                                         at_work.count_down();
                                         until([&] { return lease.lost(); });
                                       },
                                       ConsumerOptions{.lease = 300ms}};
         auto call = std::async(std::launch::async, [&] { return mail(Payment{}); });
         at_work.wait();
         until([&] {  // a beat may come in between
           bench.advance(300ms);
           return other(Payment{}).status == Status::applied;
         });
         const auto outcome = call.get();
         check_outcome(outcome, Status::in_progress, Action::redeliver, 1);
         CHECK(code_of(outcome) == code::lease_lost);
         CHECK(world.count() == 1);
       }},
      {"of many deliveries of an event whose lease ended, one takes it over",
       [](Bench& bench) {
         constexpr int calls = 8;
         static_cast<void>(must_acquire(bench.store, {.key = Key{"", "mail.v1", "p-1"}}, 1s));
         bench.advance(2s);
         std::latch others_answered{calls - 1};
         std::atomic<int> starts = 0;
         const auto handler = [&](Lease&, const Payment&) {
           if (++starts == 1) others_answered.wait();
         };
         const IdempotentConsumer one{"mail.v1", bench.store, handler};
         const IdempotentConsumer other{"mail.v1", bench.rival(), handler};
         std::vector<std::future<Outcome<>>> outcomes;
         for (int i = 0; i < calls; ++i)
           outcomes.push_back(std::async(std::launch::async, [&, i] {
             auto outcome = i % 2 == 0 ? one(Payment{}) : other(Payment{});
             if (outcome.status != Status::applied) others_answered.count_down();
             return outcome;
           }));
         int applied = 0;
         int in_progress = 0;
         for (auto& waiting : outcomes) {
           const auto outcome = waiting.get();
           applied += outcome.status == Status::applied ? 1 : 0;
           in_progress += outcome.status == Status::in_progress ? 1 : 0;
         }
         CHECK(starts == 1);
         CHECK(applied == 1);
         CHECK(in_progress == calls - 1);
       }},
  };
}

}  // namespace idem::tests
