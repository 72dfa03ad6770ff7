// SPDX-License-Identifier: MIT
#pragma once

// A key that is taken: duplicate or mismatch, and the value that goes back to duplicates.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/bench.hpp"

namespace idem::tests {

/// Shows that what a handler returns is given to duplicates as it was, in another consumer as well.
template <class R, class Bench>
void show_replay(Bench& bench, const std::string& id, const R& value) {
  CAPTURE(id);
  int starts = 0;
  const auto handler = [&](TransactionOn<Bench>&, const Payment&) {
    ++starts;
    return value;
  };
  const IdempotentConsumer first{"replay.v1", bench.store, handler};
  const IdempotentConsumer second{"replay.v1", bench.rival(), handler};
  const auto applied = first(Payment{.id = id});
  check_outcome(applied, Status::applied, Action::acknowledge, 1);
  CHECK((applied.value == std::optional<R>{value}));
  CHECK_FALSE(applied.replayed);
  for (const auto& duplicate : {first(Payment{.id = id}), second(Payment{.id = id})}) {
    check_outcome(duplicate, Status::duplicate, Action::acknowledge, 0);
    CHECK(duplicate.value.has_value());
    CHECK((duplicate.value == std::optional<R>{value}));
    CHECK(duplicate.replayed);
  }
  CHECK(starts == 1);
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> fingerprint_behaviours() {
  using namespace std::string_literals;
  return {
      {"a new event is applied, and acknowledged as a duplicate ever after",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         check_outcome(pay(Payment{.amount = 7}), Status::applied, Action::acknowledge, 1);
         for (int i = 0; i < 3; ++i)
           check_outcome(pay(Payment{.amount = 7, .delivery = 2 + i}), Status::duplicate, Action::acknowledge,
                         0);
         CHECK(starts == 1);
         CHECK(bench.sum() == 7);
         CHECK(bench.keys() == 1);
       }},
      {"another message under a taken id is a mismatch that names both fingerprints and is dead-lettered",
       [](Bench& bench) {
         int starts = 0;
         Recorder seen;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), seen};
         CHECK(pay(Payment{.amount = 10}).status == Status::applied);
         for (int i = 0; i < 2; ++i) {
           const auto outcome = pay(Payment{.amount = 99});
           check_outcome(outcome, Status::mismatch, Action::dead_letter, 0);
           REQUIRE(outcome.failure);
           CHECK(outcome.failure->code == code::mismatch);
           CHECK(contains(outcome.failure->message, fingerprint_of(10).to_hex()));
           CHECK(contains(outcome.failure->message, fingerprint_of(99).to_hex()));
         }
         CHECK(pay(Payment{.amount = 10}).status == Status::duplicate);
         CHECK(starts == 1);
         CHECK(bench.sum() == 10);
         CHECK(seen.count(Observed::fingerprint_not_compared) == 0);
       }},
      {"a mismatch is acknowledged when the consumer is told so",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts),
                                      ConsumerOptions{.on_mismatch = Mismatch::acknowledge}};
         CHECK(pay(Payment{.amount = 10}).status == Status::applied);
         check_outcome(pay(Payment{.amount = 99}), Status::mismatch, Action::acknowledge, 0);
         CHECK(starts == 1);
       }},
      {"a mismatch is found by another process as well",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer one{"pay.v1", bench.store, paying(bench, starts)};
         const IdempotentConsumer other{"pay.v1", bench.rival(), paying(bench, starts)};
         CHECK(one(Payment{.amount = 10}).status == Status::applied);
         check_outcome(other(Payment{.amount = 99}), Status::mismatch, Action::dead_letter, 0);
         CHECK(starts == 1);
       }},
      {"fingerprints that cannot be compared make a duplicate, and the observer is told",
       [](Bench& bench) {
         int starts = 0;
         Recorder seen;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), seen};
         const Fingerprint none;
         const std::vector<std::pair<Fingerprint, Fingerprint>> pairs{
             {fingerprint_of(1), none},
             {none, fingerprint_of(1)},
             {none, none},
             {fingerprint_of(1), fingerprint_of(Revision{2}, 1)},
             {fingerprint_of(Revision{2}, 1), fingerprint_of(1)},
             {fingerprint_of(1), fingerprint_bytes("1")},
             {fingerprint_bytes("1"), fingerprint_of(2)}};
         int told = 0;
         for (std::size_t i = 0; i < pairs.size(); ++i) {
           CAPTURE(i);
           const std::string id = "pair-" + std::to_string(i);
           const auto first = pay.process({.id = id, .fingerprint = pairs[i].first}, Payment{});
           check_outcome(first, Status::applied, Action::acknowledge, 1);
           const auto second = pay.process({.id = id, .fingerprint = pairs[i].second}, Payment{});
           check_outcome(second, Status::duplicate, Action::acknowledge, 0);
           CHECK(seen.count(Observed::fingerprint_not_compared) == ++told);
         }
         CHECK(starts == static_cast<int>(pairs.size()));
       }},
      {"fingerprints of a later revision are compared with each other",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         const Revision second{2};
         CHECK(pay.process({.id = "1", .fingerprint = fingerprint_of(second, 1)}, Payment{}).status ==
               Status::applied);
         CHECK(pay.process({.id = "1", .fingerprint = fingerprint_of(second, 2)}, Payment{}).status ==
               Status::mismatch);
         CHECK(pay.process({.id = "1", .fingerprint = fingerprint_of(second, 1)}, Payment{}).status ==
               Status::duplicate);
       }},
      {"what the handler returns goes back to duplicates as it was",
       [](Bench& bench) {
         show_replay(bench, "text", "a text"s);
         show_replay(bench, "empty text", ""s);
         show_replay(bench, "NUL in text", "a\0b"s);
         show_replay(bench, "quotes", "'\\\"$1"s);
         show_replay(bench, "not UTF-8", "\xFF\xFE"s);
         show_replay(bench, "zero", 0);
         show_replay(bench, "least", std::numeric_limits<std::int64_t>::min());
         show_replay(bench, "most", std::numeric_limits<std::uint64_t>::max());
         show_replay(bench, "false", false);
         show_replay(bench, "true", true);
         show_replay(bench, "nullopt", std::optional<std::string>{});
         show_replay(bench, "an empty optional text", std::optional<std::string>{""});
         show_replay(bench, "optional number", std::optional<int>{-1});
         show_replay(bench, "no bytes", std::vector<std::byte>{});
         show_replay(bench, "bytes", std::vector{std::byte{0}, std::byte{255}, std::byte{0}, std::byte{39}});
       }},
      {"a handler that returns nothing has nothing to replay",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         CHECK_FALSE(pay(Payment{}).value);
         const auto duplicate = pay(Payment{});
         CHECK_FALSE(duplicate.value);
         CHECK_FALSE(duplicate.replayed);
       }},
      {"a stored value that this version cannot read leaves a duplicate without one, and the observer is told",
       [](Bench& bench) {
         Recorder seen;
         const IdempotentConsumer old_one{"pay.v1", bench.store,
                                          [](TransactionOn<Bench>&, const Payment&) { return "r-17"s; }};
         const IdempotentConsumer new_one{"pay.v1", bench.store,
                                          [](TransactionOn<Bench>&, const Payment&) { return 17; }, seen};
         CHECK(old_one(Payment{}).value == "r-17");
         const auto outcome = new_one(Payment{});
         check_outcome(outcome, Status::duplicate, Action::acknowledge, 0);
         CHECK_FALSE(outcome.value);
         CHECK_FALSE(outcome.replayed);
         CHECK(seen.count(Observed::value_not_decoded) == 1);
       }},
      {"a handler that began to return something later has no value for what was handled before",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer old_one{"pay.v1", bench.store, paying(bench, starts)};
         const IdempotentConsumer new_one{"pay.v1", bench.store,
                                          [](TransactionOn<Bench>&, const Payment&) { return ""s; }};
         CHECK(old_one(Payment{}).status == Status::applied);
         const auto outcome = new_one(Payment{});
         CHECK(outcome.status == Status::duplicate);
         CHECK_FALSE(outcome.value);
         CHECK_FALSE(outcome.replayed);
       }},
      {"only the attempt that was committed gives the value",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>&, const Payment&) {
                                        if (++starts < 3) throw TransientError{"not yet"};
                                        return starts;
                                      },
                                      Immediate{} | MaxAttempts{3}};
         CHECK(pay(Payment{}).value == 3);
         CHECK(pay(Payment{}).value == 3);
         const IdempotentConsumer never{
             "never.v1", bench.store,
             [](TransactionOn<Bench>&, const Payment&) -> int { throw PermanentError{"no"}; }};
         CHECK_FALSE(never(Payment{}).value);
       }},
  };
}

}  // namespace idem::tests
