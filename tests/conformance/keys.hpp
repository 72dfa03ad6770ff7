// SPDX-License-Identifier: MIT
#pragma once

// Which messages are one event, which are two, and which have no key.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/bench.hpp"

namespace idem::tests {

/// As much valid UTF-8 without NUL as fits in `bytes`, of random code points of one to four bytes.
[[nodiscard]] inline std::string random_text(std::size_t bytes, std::uint64_t seed) {
  SplitMix64 random{seed};
  std::string text = "r";
  while (text.size() < bytes) {
    const std::size_t room = bytes - text.size();
    const auto length = std::min<std::size_t>(room, 1 + random() % 4);
    const auto pick = [&random](std::uint32_t lo, std::uint32_t hi) {
      return lo + static_cast<std::uint32_t>(random() % (hi - lo));
    };
    const auto tail = [](std::uint32_t c, int shift) {
      return static_cast<char>(0x80U | ((c >> shift) & 0x3FU));
    };
    if (length == 1) {
      text += static_cast<char>(pick(1, 0x80));
    } else if (length == 2) {
      const auto c = pick(0x80, 0x800);
      text += {static_cast<char>(0xC0U | c >> 6), tail(c, 0)};
    } else if (length == 3) {
      const auto c = pick(0x800, 0xD800);
      text += {static_cast<char>(0xE0U | c >> 12), tail(c, 6), tail(c, 0)};
    } else {
      const auto c = pick(0x10000, 0x110000);
      text += {static_cast<char>(0xF0U | c >> 18), tail(c, 12), tail(c, 6), tail(c, 0)};
    }
  }
  return text;
}

/// A message whose event_of throws.
struct Unreadable {
  int how;
};
[[nodiscard]] inline Event event_of(const Unreadable& m) {
  if (m.how == 0) throw std::runtime_error{"no such field"};
  throw 42;
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> key_behaviours() {
  using namespace std::string_literals;
  return {
      {"a consumer whose name cannot be part of a key is not made",
       [](Bench& bench) {
         int starts = 0;
         for (const std::string& name : {""s, " \t\n"s, "a\0b"s, "\xFF"s, std::string(129, 'n')}) {
           CAPTURE(name);
           CHECK_THROWS_AS((IdempotentConsumer{name, bench.store, paying(bench, starts)}), InvalidKey);
         }
         const IdempotentConsumer longest{std::string(128, 'n'), bench.store, paying(bench, starts)};
         CHECK(longest(Payment{}).status == Status::applied);
       }},
      {"an event without a key is rejected, starts nothing and stores nothing, however often",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         const std::vector<Payment> bad{{.id = ""},
                                        {.id = " "},
                                        {.id = "\t\r\n\v\f"},
                                        {.id = "k\0one"s},
                                        {.id = "k\0two"s},
                                        {.id = "\0"s},
                                        {.id = "\xC3"},          // half of a character
                                        {.id = "\xC0\xAF"},      // overlong
                                        {.id = "\xED\xA0\x80"},  // a surrogate
                                        {.id = "\xF4\x90\x80\x80"},
                                        {.id = std::string(513, 'x')},
                                        {.tenant = "a\0b"s},
                                        {.tenant = "\xFF"},
                                        {.tenant = std::string(129, 't')}};
         for (const Payment& p : bad) {
           for (int delivery = 1; delivery <= 2; ++delivery) {
             CAPTURE(p.id, p.tenant, delivery);
             const auto outcome = pay(p);
             check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
             REQUIRE(outcome.failure);
             CHECK(outcome.failure->code == code::invalid_key);
             CHECK(outcome.failure->kind == ErrorClass::permanent);
           }
         }
         CHECK(starts == 0);
         CHECK(bench.keys() == 0);
         CHECK(bench.sum() == 0);
       }},
      {"ids of any bytes that are text are accepted up to 512 of them, and found again",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         const std::uint64_t seed = std::random_device{}();
         CAPTURE(seed);
         std::string emoji;
         for (int i = 0; i < 128; ++i) emoji += "\xF0\x9F\x92\xB8";
         std::vector<std::string> ids{
             std::string(512, 'x'), emoji,  "'",    "\\",  "a\\'b", "\"", "$1", "%s", "{}", "\x7F", "\x01",
             "line\nbreak",         "p-1 ", " p-1", "P-1", "p-1"};
         for (std::uint64_t i = 0; i < 8; ++i) ids.push_back(random_text(512, seed + i));
         for (const std::string& id : ids) {
           CAPTURE(id);
           REQUIRE(id.size() <= 512);
           check_outcome(pay(Payment{.id = id}), Status::applied, Action::acknowledge, 1);
         }
         for (const std::string& id : ids) {
           CAPTURE(id);
           check_outcome(pay(Payment{.id = id}), Status::duplicate, Action::acknowledge, 0);
         }
         CHECK(bench.keys() == ids.size());
         CHECK(bench.sum() == static_cast<std::int64_t>(ids.size()));
       }},
      {"two spellings of one character are two events",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         CHECK(pay(Payment{.id = "caf\xC3\xA9"}).status == Status::applied);   // NFC
         CHECK(pay(Payment{.id = "cafe\xCC\x81"}).status == Status::applied);  // NFD
         CHECK(pay(Payment{.id = "caf\xC3\xA9"}).status == Status::duplicate);
         CHECK(bench.keys() == 2);
       }},
      {"two consumers both handle one event",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer charge{"charge.v1", bench.store, paying(bench, starts)};
         const IdempotentConsumer ship{"ship.v1", bench.store, paying(bench, starts)};
         CHECK(charge(Payment{}).status == Status::applied);
         CHECK(ship(Payment{}).status == Status::applied);
         CHECK(charge(Payment{}).status == Status::duplicate);
         CHECK(ship(Payment{}).status == Status::duplicate);
         CHECK(starts == 2);
       }},
      {"two consumers of one name are one consumer",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer one{"charge.v1", bench.store, paying(bench, starts)};
         const IdempotentConsumer other{"charge.v1", bench.rival(), paying(bench, starts)};
         CHECK(one(Payment{}).status == Status::applied);
         CHECK(other(Payment{}).status == Status::duplicate);
         CHECK(starts == 1);
       }},
      {"two tenants have an event each under one id",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         for (const std::string& tenant : {"A"s, "B"s, ""s, " "s})
           CHECK(pay(Payment{.tenant = tenant}).status == Status::applied);
         for (const std::string& tenant : {"A"s, "B"s, ""s, " "s})
           CHECK(pay(Payment{.tenant = tenant}).status == Status::duplicate);
         CHECK(starts == 4);
       }},
      {"characters do not move between tenant, consumer and id",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer a{"a", bench.store, paying(bench, starts)};
         const IdempotentConsumer ab{"ab", bench.store, paying(bench, starts)};
         CHECK(a(Payment{.id = "bc", .tenant = "t"}).status == Status::applied);
         CHECK(ab(Payment{.id = "c", .tenant = "t"}).status == Status::applied);
         CHECK(a(Payment{.id = "c", .tenant = "tb"}).status == Status::applied);
         CHECK(a(Payment{.id = "c", .tenant = "t/b"}).status == Status::applied);
         CHECK(starts == 4);
       }},
      {"an event_of that throws rejects the message and starts nothing",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>&, const auto&) { ++starts; }};
         for (int how = 0; how < 2; ++how) {
           const auto outcome = pay(Unreadable{how});
           check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
           REQUIRE(outcome.failure);
           CHECK(outcome.failure->code == code::event_of_failed);
           CHECK_FALSE(outcome.failure->message.empty());
         }
         CHECK(starts == 0);
         CHECK(bench.keys() == 0);
       }},
      {"an event given by hand is handled as one that event_of gives",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts)};
         const IdempotentConsumer length{
             "length.v1", bench.store,
             [](TransactionOn<Bench>&, std::string_view text) { return text.size(); }};
         CHECK(pay.process(event_of(Payment{}), Payment{}).status == Status::applied);
         CHECK(pay(Payment{}).status == Status::duplicate);
         CHECK(length.process({.id = "a text"}, std::string{"four"}).value == 4U);
       }},
  };
}

}  // namespace idem::tests
