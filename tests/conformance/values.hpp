// SPDX-License-Identifier: MIT
#pragma once

// What a handler outside the store returned, given to the duplicates of another process.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "conformance/bench.hpp"

namespace idem::tests {

/// Shows that a duplicate is given the value, from a store object that never saw it.
template <class Bench, class R>
void check_replayed(Bench& bench, const std::string& id, const R& value) {
  CAPTURE(id);
  const IdempotentConsumer mail{"mail.v1", bench.store, [&](Lease&, const Payment&) -> R { return value; }};
  const auto first = mail(Payment{.id = id});
  check_outcome(first, Status::applied, Action::acknowledge, 1);
  REQUIRE(first.value);
  CHECK(*first.value == value);
  CHECK_FALSE(first.replayed);
  const IdempotentConsumer cold{"mail.v1", bench.rival(), [&](Lease&, const Payment&) -> R {
                                  FAIL("the handler ran again");
                                  return value;
                                }};
  const auto again = cold(Payment{.id = id});
  check_outcome(again, Status::duplicate, Action::acknowledge, 0);
  REQUIRE(again.value);
  CHECK(*again.value == value);
  CHECK(again.replayed);
  CHECK_FALSE(cold(Payment{.id = id, .amount = 2}).value);
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> value_behaviours() {
  using namespace std::string_literals;
  return {
      {"whatever a handler returned is given to duplicates, though it looks like nothing",
       [](Bench& bench) {
         check_replayed(bench, "empty text", ""s);
         check_replayed(bench, "text with NUL", "a\0b\0"s);
         check_replayed(bench, "bytes that are no text", "\xFF\xFE\\x00'"s);
         check_replayed(bench, "long text", std::string(100'000, '\\'));
         check_replayed(bench, "zero", 0);
         check_replayed(bench, "least", std::numeric_limits<std::int64_t>::min());
         check_replayed(bench, "greatest", std::numeric_limits<std::uint64_t>::max());
         check_replayed(bench, "false", false);
         check_replayed(bench, "no bytes", std::vector<std::byte>{});
         check_replayed(bench, "bytes with NUL",
                        std::vector<std::byte>{std::byte{0}, std::byte{255}, std::byte{0}});
         check_replayed(bench, "absent", std::optional<std::string>{});
         check_replayed(bench, "present and empty", std::optional{""s});
         check_replayed(bench, "present zero", std::optional{0});
         check_replayed(bench, "present false", std::optional{false});
         check_replayed(bench, "absent in present", std::optional{std::optional<int>{}});
       }},
      {"a handler that returns nothing has no value to replay",
       [](Bench& bench) {
         const IdempotentConsumer mail{"mail.v1", bench.store, [](Lease&, const Payment&) {}};
         CHECK(mail(Payment{}).status == Status::applied);
         const auto again = mail(Payment{});
         check_outcome(again, Status::duplicate, Action::acknowledge, 0);
         CHECK_FALSE(again.value);
         CHECK_FALSE(again.replayed);
       }},
      {"a value that this version cannot read leaves a duplicate without one, and the observer is told",
       [](Bench& bench) {
         Recorder seen;
         const IdempotentConsumer old_one{"mail.v1", bench.store,
                                          [](Lease&, const Payment&) { return "r-17"s; }};
         const IdempotentConsumer new_one{"mail.v1", bench.rival(), [](Lease&, const Payment&) { return 17; },
                                          seen};
         CHECK(old_one(Payment{}).value == "r-17");
         const auto outcome = new_one(Payment{});
         check_outcome(outcome, Status::duplicate, Action::acknowledge, 0);
         CHECK_FALSE(outcome.value);
         CHECK_FALSE(outcome.replayed);
         CHECK(seen.count(Observed::value_not_decoded) == 1);
       }},
      {"only the attempt that was completed gives the value",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer mail{"mail.v1", bench.store,
                                       [&](Lease&, const Payment&) {
                                         if (++starts < 3) throw TransientError{"not yet"};
                                         return starts;
                                       },
                                       Immediate{} | MaxAttempts{3}};
         CHECK(mail(Payment{}).value == 3);
         CHECK(mail(Payment{}).value == 3);
       }},
  };
}

}  // namespace idem::tests
