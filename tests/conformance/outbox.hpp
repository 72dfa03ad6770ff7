// SPDX-License-Identifier: MIT
#pragma once

// What handlers publish. Besides what bench.hpp asks, a Bench of this suite has:
//
//   std::vector<OutboxMessage> outbox()  what is published, in order
//   void advance(Duration)               lets so much time pass for what is stored

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <idem/consumer.hpp>
#include <idem/detail/publishing.hpp>
#include <idem/outbox.hpp>

#include "conformance/bench.hpp"

namespace idem::tests::publishing {

using namespace std::chrono_literals;
using Ids = std::vector<std::string>;

template <class Bench>
[[nodiscard]] Ids ids_in_outbox(Bench& bench) {
  Ids ids;
  for (const OutboxMessage& message : bench.outbox()) ids.push_back(message.id);
  return ids;
}

/// The id that the library promises for a message that is given none.
[[nodiscard]] inline std::string promised_id(const Key& key, std::uint64_t position,
                                             std::uint64_t generation = 1, std::uint64_t purges = 0) {
  auto origin = detail::Publishing::for_event(key);
  origin.position = position;
  return detail::derived_id(origin, generation, purges);
}

/// What an enqueue that is refused says; empty: it is not.
template <class Error = PermanentError, class Work>
[[nodiscard]] std::string refused(Work work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

/// A handler that does the effect and publishes `count` messages, whose ids it appends to `ids`.
template <class Bench>
[[nodiscard]] auto publishing_handler(Bench& bench, Ids& ids, int count) {
  return [&bench, &ids, count](auto& tx, const Payment& p) {
    bench.write(tx, p.amount);
    for (int i = 0; i < count; ++i)
      ids.push_back(enqueue(tx, OutboxMessage{.topic = "paid", .key = p.id, .payload = std::to_string(i)}));
  };
}

/// Shows that a message is refused before anything is stored: why, and what becomes of the event.
template <class Bench>
void check_refused(Bench& bench, const OutboxMessage& message, const std::string& why) {
  CAPTURE(why);
  const IdempotentConsumer pay{"pay.v1", bench.store, [&](auto& tx, const Payment& p) {
                                 bench.write(tx, p.amount);
                                 enqueue(tx, message);
                               }};
  const auto outcome = pay(Payment{});
  check_outcome(outcome, Status::rejected, Action::dead_letter, 1);
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->kind == ErrorClass::permanent);
  CAPTURE(outcome.failure->message);
  CHECK(contains(outcome.failure->message, why));
  CHECK_FALSE(contains(outcome.failure->message, "secret"));
  CHECK(bench.outbox().empty());
  CHECK(bench.keys() == 0);
  CHECK(bench.sum() == 0);
}

/// A handler of many events that publishes one message for each, with an id of its own if it is asked to.
enum class GivenIds { yes, no };
template <class Bench>
[[nodiscard]] auto bulk_handler(Bench& bench, GivenIds given) {
  return [&bench, given](TransactionOn<Bench>& tx, std::span<const Payment* const> payments) {
    for (const Payment* p : payments) {
      bench.write(tx, p->amount);
      OutboxMessage message{.topic = "paid"};
      if (given == GivenIds::yes) message.id = "of " + p->id;
      enqueue(tx, message);
    }
  };
}

template <class Bench>
[[nodiscard]] std::vector<Behaviour<Bench>> outbox_behaviours() {
  using namespace std::string_literals;
  return {
      {"what a handler publishes is there when its effect is, exactly as it was given",
       [](Bench& bench) {
         const std::vector<OutboxMessage> given{{.topic = "paid",
                                                 .key = "caf\xC3\xA9 '\\",
                                                 .payload = "a\0\xFF\\'\""s,
                                                 .headers = {{"quotes \"'", "\\back\\slash\\\""},
                                                             {"commas, {braces}", "NULL"},
                                                             {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80\n\t"},
                                                             {"empty", ""}},
                                                 .id = "given '\\ \xC3\xA9"},
                                                {.topic = "  paid twice  "}};
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, [&](auto& tx, const Payment& p) {
                                        bench.write(tx, p.amount);
                                        for (const OutboxMessage& message : given)
                                          ids.push_back(enqueue(tx, message));
                                      }};
         check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 1);
         const std::vector<OutboxMessage> found = bench.outbox();
         REQUIRE(found.size() == given.size());
         for (std::size_t i = 0; i < given.size(); ++i) {
           CAPTURE(i);
           CHECK(found[i].topic == given[i].topic);
           CHECK(found[i].key == given[i].key);
           CHECK(found[i].payload == given[i].payload);
           CHECK(found[i].headers == given[i].headers);
           CHECK(found[i].id == ids[i]);
         }
         CHECK(ids[0] == given[0].id);
         CHECK(ids[1] == promised_id(Key{"", "pay.v1", "p-1"}, 1));
       }},
      {"a handler that publishes, throws and is retried publishes each message once, under the id it had",
       [](Bench& bench) {
         Ids ids;
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](auto& tx, const Payment& p) {
                                        publishing_handler(bench, ids, 3)(tx, p);
                                        if (++starts == 1) throw TransientError{"down"};
                                      },
                                      Immediate{} | MaxAttempts{2}};
         check_outcome(pay(Payment{}), Status::applied, Action::acknowledge, 2);
         REQUIRE(ids.size() == 6);
         CHECK(Ids(ids.begin(), ids.begin() + 3) == Ids(ids.begin() + 3, ids.end()));
         CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == 3);
         CHECK(ids_in_outbox(bench) == Ids(ids.begin() + 3, ids.end()));
         CHECK(bench.sum() == 1);
       }},
      {"nothing of an attempt that failed half-way is left for the next one to publish",
       [](Bench& bench) {
         int starts = 0;
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](auto& tx, const Payment&) {
                                        if (++starts == 1) {
                                          enqueue(tx, OutboxMessage{.topic = "first half"});
                                          throw TransientError{"down"};
                                        }
                                        enqueue(tx, OutboxMessage{.topic = "the whole"});
                                      },
                                      Immediate{} | MaxAttempts{2}};
         CHECK(pay(Payment{}).status == Status::applied);
         const auto found = bench.outbox();
         REQUIRE(found.size() == 1);
         CHECK(found[0].topic == "the whole");
         CHECK(found[0].id == promised_id(Key{"", "pay.v1", "p-1"}, 0));
       }},
      {"an event that is given up publishes nothing, and its redelivery the same ids",
       [](Bench& bench) {
         Ids ids;
         bool down = true;
         const IdempotentConsumer pay{"pay.v1", bench.store, [&](auto& tx, const Payment& p) {
                                        publishing_handler(bench, ids, 2)(tx, p);
                                        if (down) throw TransientError{"down"};
                                      }};
         CHECK(pay(Payment{}).status == Status::deferred);
         CHECK(bench.outbox().empty());
         down = false;
         CHECK(pay(Payment{}).status == Status::applied);
         REQUIRE(ids.size() == 4);
         CHECK(Ids(ids.begin(), ids.begin() + 2) == Ids(ids.begin() + 2, ids.end()));
         CHECK(ids_in_outbox(bench).size() == 2);
       }},
      {"a duplicate publishes nothing",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 1)};
         const IdempotentConsumer cold{"pay.v1", bench.rival(), publishing_handler(bench, ids, 1)};
         CHECK(pay(Payment{}).status == Status::applied);
         CHECK(pay(Payment{}).status == Status::duplicate);
         CHECK(cold(Payment{}).status == Status::duplicate);
         CHECK(pay(Payment{.amount = 2}).status == Status::mismatch);
         CHECK(ids_in_outbox(bench).size() == 1);
       }},
      {"an event that is new again after its window publishes under new ids",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 2),
                                      ConsumerOptions{.window = 24h}};
         const Key key{"", "pay.v1", "p-1"};
         Ids promised;
         for (std::uint64_t generation = 1; generation <= 3; ++generation) {
           CHECK(pay(Payment{}).status == Status::applied);
           bench.advance(25h);
           promised.push_back(promised_id(key, 0, generation));
           promised.push_back(promised_id(key, 1, generation));
         }
         CHECK(ids == promised);
         CHECK(ids_in_outbox(bench) == promised);
         CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == 6);
       }},
      {"a lease that ended without an effect does not change the ids",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 1)};
         const Payment payment{};
         const Key key{"", "pay.v1", payment.id};
         const auto fingerprint = event_of(payment).fingerprint;
         const auto met = bench.store.acquire({.key = key, .fingerprint = fingerprint}, 60s);
         REQUIRE(std::holds_alternative<Grant>(met));
         CHECK(pay(payment).status == Status::in_progress);
         bench.advance(61s);
         CHECK(pay(payment).status == Status::applied);
         CHECK(ids_in_outbox(bench) == Ids{promised_id(key, 0)});
       }},
      {"ids tell tenants, consumers, events and places apart, wherever one part ends and the next begins",
       [](Bench& bench) {
         Ids ids;
         const auto handler = publishing_handler(bench, ids, 2);
         for (const char* name : {"a", "ab"}) {
           const IdempotentConsumer pay{name, bench.store, handler};
           for (const char* tenant : {"", "a"})
             for (const char* id : {"bc", "c", "1"})
               CHECK(pay(Payment{.id = id, .tenant = tenant}).status == Status::applied);
         }
         CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == 24);
         CHECK(ids_in_outbox(bench) == ids);
       }},
      {"the id is the one that was promised once and for all",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 2)};
         CHECK(pay(Payment{.id = "caf\xC3\xA9", .tenant = "acme"}).status == Status::applied);
         CHECK(ids == Ids{"e4a15e84814b6d90689a58a4da44aa34", "9f2fa74dc309dcf2857047b8c6f34dfa"});
       }},
      {"a batch publishes as its messages would one by one",
       [](Bench& bench) {
         const std::vector<Payment> payments{{.id = "p-1"}, {.id = "p-2"}, {.id = "p-3"}};
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, publishing_handler(bench, ids, 2)};
         CHECK(pay.process_batch(payments).all_acknowledged());
         Ids promised;
         for (const Payment& p : payments)
           for (const std::uint64_t position : {0U, 1U})
             promised.push_back(promised_id(Key{"", "pay.v1", p.id}, position));
         CHECK(ids == promised);
         CHECK(ids_in_outbox(bench) == promised);
         CHECK(pay.process_batch(payments).all_acknowledged());
         CHECK(ids_in_outbox(bench) == promised);
       }},
      {"a batch in which one message fails publishes for the others, under the ids of the first run",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{"pay.v1", bench.store, [&](auto& tx, const Payment& p) {
                                        publishing_handler(bench, ids, 1)(tx, p);
                                        if (p.id == "bad") throw PermanentError{"bad"};
                                      }};
         const auto report =
             pay.process_batch(std::vector<Payment>{{.id = "p-1"}, {.id = "bad"}, {.id = "p-2"}});
         CHECK(report.failed() == std::vector<std::size_t>{1});
         CHECK(ids_in_outbox(bench) ==
               Ids{promised_id(Key{"", "pay.v1", "p-1"}, 0), promised_id(Key{"", "pay.v1", "p-2"}, 0)});
         REQUIRE(ids.size() == 5);  // two together, then three one by one
         CHECK(ids[0] == ids[2]);
         CHECK(ids[1] == ids[3]);
       }},
      {"a handler of many events gives its messages their ids, in a batch and for a message alone",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1", bench.store, bulk_handler(bench, GivenIds::yes)};
         CHECK(pay.process_batch(std::vector<Payment>{{.id = "p-1"}, {.id = "p-2"}}).all_acknowledged());
         CHECK(pay(Payment{.id = "p-3"}).status == Status::applied);
         CHECK(ids_in_outbox(bench) == Ids{"of p-1", "of p-2", "of p-3"});
         const IdempotentConsumer forgetful{"forgetful.v1", bench.store, bulk_handler(bench, GivenIds::no)};
         const auto report = forgetful.process_batch(std::vector<Payment>{{.id = "p-1"}, {.id = "p-2"}});
         for (const auto& outcome : report.outcomes) {
           CHECK(outcome.status == Status::rejected);
           CHECK(contains(outcome.failure.value().message, "give OutboxMessage::id"));
         }
         CHECK(forgetful(Payment{.id = "p-3"}).status == Status::rejected);
         CHECK(ids_in_outbox(bench).size() == 3);
         CHECK(bench.sum() == 3);
       }},
      {"events of several tenants are published for by a handler of many events one by one",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](TransactionOn<Bench>& tx, std::span<const Payment* const>) {
                                        enqueue(tx, OutboxMessage{.topic = "paid", .id = "the same"});
                                      }};
         const auto report = pay.process_batch(
             std::vector<Payment>{{.id = "p-1", .tenant = "a"}, {.id = "p-1", .tenant = "b"}});
         CHECK(report.all_acknowledged());
         CHECK(ids_in_outbox(bench) == Ids{"the same", "the same"});
       }},
      {"an id that is taken is refused by name, and not for another tenant",
       [](Bench& bench) {
         const IdempotentConsumer pay{"pay.v1", bench.store, [&](auto& tx, const Payment& p) {
                                        bench.write(tx, p.amount);
                                        enqueue(tx, OutboxMessage{.topic = "paid", .id = "mine \"\n"});
                                      }};
         CHECK(pay(Payment{.id = "p-1", .tenant = "a"}).status == Status::applied);
         CHECK(pay(Payment{.id = "p-1", .tenant = "b"}).status == Status::applied);
         const auto outcome = pay(Payment{.id = "p-2", .tenant = "a"});
         check_outcome(outcome, Status::rejected, Action::dead_letter, 1);
         CHECK(contains(outcome.failure.value().message, "\"mine \\\"\\n\""));
         CHECK(contains(outcome.failure.value().message, "unique per tenant"));
         CHECK(bench.outbox().size() == 2);
         CHECK(bench.sum() == 2);
       }},
      {"a handler may take a refusal and go on: what was refused has no place among its messages",
       [](Bench& bench) {
         Ids ids;
         const IdempotentConsumer pay{
             "pay.v1", bench.store, [&](auto& tx, const Payment& p) {
               bench.write(tx, p.amount);
               enqueue(tx, OutboxMessage{.topic = "paid", .id = "once"});
               CHECK_THROWS_AS(enqueue(tx, OutboxMessage{.topic = "paid", .id = "once"}), PermanentError);
               CHECK_THROWS_AS(enqueue(tx, OutboxMessage{}), PermanentError);
               ids.push_back(enqueue(tx, OutboxMessage{.topic = "paid"}));
             }};
         CHECK(pay(Payment{}).status == Status::applied);
         CHECK(ids_in_outbox(bench) == Ids{"once", promised_id(Key{"", "pay.v1", "p-1"}, 1)});
       }},
      {"a message that cannot be sent is refused by name, and nothing is stored",
       [](Bench& bench) {
         const std::string nul{"a\0b", 3};
         const std::string latin = "caf\xE9";
         check_refused(bench, {}, "the topic \"\" (0 bytes, 255 allowed) is empty");
         check_refused(bench, {.topic = " \t"}, "white space only");
         check_refused(bench, {.topic = nul}, "topic \"a\\x00b\" (3 bytes, 255 allowed) contains NUL");
         check_refused(bench, {.topic = latin}, "topic \"caf\\xe9\" (4 bytes, 255 allowed) is not UTF-8");
         check_refused(bench, {.topic = std::string(256, 't')}, "(256 bytes, 255 allowed) is too long");
         check_refused(bench, {.topic = "t", .key = nul}, "the ordering key \"a\\x00b\"");
         check_refused(bench, {.topic = "t", .key = latin}, "is not UTF-8");
         check_refused(bench, {.topic = "t", .key = std::string(513, 'k')}, "(513 bytes, 512 allowed)");
         check_refused(bench, {.topic = "t", .id = " "}, "the message id \" \"");
         check_refused(bench, {.topic = "t", .id = nul}, "contains NUL");
         check_refused(bench, {.topic = "t", .id = latin}, "is not UTF-8");
         check_refused(bench, {.topic = "t", .id = std::string(256, 'i')}, "(256 bytes, 255 allowed)");
         check_refused(bench, {.topic = "t", .headers = {{"", "secret"}}}, "the name of a header \"\"");
         check_refused(bench, {.topic = "t", .headers = {{nul, "secret"}}}, "contains NUL");
         check_refused(bench, {.topic = "t", .headers = {{latin, "secret"}}}, "is not UTF-8");
         check_refused(bench, {.topic = "t", .headers = {{std::string(256, 'h'), "secret"}}}, "255 allowed");
         check_refused(bench, {.topic = "t", .headers = {{"h", "secret" + nul}}},
                       "the value of header \"h\"");
         check_refused(bench, {.topic = "t", .headers = {{"h", "secret" + latin}}}, "is not UTF-8");
         check_refused(bench, {.topic = "t", .headers = {{"h", std::string(65'537, 'v')}}}, "is too long");
         check_refused(bench, {.topic = "t", .headers = {{"h", std::string(65'530, 'v')}, {"i", "secret"}}},
                       "the headers hold 65538 bytes, and 65536 are allowed");
         check_refused(bench, {.topic = "t", .payload = std::string((16U << 20U) + 1, 'p')},
                       "the payload holds 16777217 bytes, and 16777216 are allowed");
       }},
      {"a message as large as is allowed is published",
       [](Bench& bench) {
         const OutboxMessage large{.topic = std::string(255, 't'),
                                   .key = std::string(512, 'k'),
                                   .payload = std::string(16U << 20U, '\0'),
                                   .headers = {{std::string(255, 'h'), std::string(65'281, '"')}},
                                   .id = std::string(255, 'i')};
         const IdempotentConsumer pay{"pay.v1", bench.store,
                                      [&](auto& tx, const Payment&) { enqueue(tx, large); }};
         CHECK(pay(Payment{}).status == Status::applied);
         const auto found = bench.outbox();
         REQUIRE(found.size() == 1);
         CHECK(found[0].topic == large.topic);
         CHECK(found[0].key == large.key);
         CHECK((found[0].payload == large.payload));
         CHECK((found[0].headers == large.headers));
         CHECK(found[0].id == large.id);
       }},
  };
}

}  // namespace idem::tests::publishing
