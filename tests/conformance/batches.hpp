// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"

namespace idem::tests::batches {

using namespace std::chrono_literals;

struct Job {
  std::string id;
  std::int64_t amount = 1;
  std::string group = {};
  std::optional<std::chrono::steady_clock::time_point> visible_until = {};
};

inline Event event_of(const Job& job) {
  if (job.id == "no event") throw std::runtime_error{"no event"};
  return {.tenant = "acme",
          .id = job.id,
          .fingerprint = fingerprint_of(job.amount),
          .ordering_key = job.group,
          .delivery_count = 1,
          .visible_until = job.visible_until};
}

inline std::string told(const Outcome<std::int64_t>& outcome) {
  std::string text{to_string(outcome.status)};
  if (outcome.failure && !outcome.failure->code.empty()) text += " " + outcome.failure->code;
  return text;
}

template <class R>
std::vector<std::string> statuses(const BatchReport<R>& report) {
  std::vector<std::string> all;
  for (const auto& outcome : report.outcomes) {
    all.emplace_back(to_string(outcome.status));
    if (outcome.failure && !outcome.failure->code.empty()) all.back() += " " + outcome.failure->code;
  }
  return all;
}

using Told = std::vector<std::string>;

/// Fails as the job's id says, else books it and returns twice its amount.
template <class Bench>
auto worker(Bench& bench) {
  return [&bench](typename Bench::Transaction& tx, const Job& job) -> std::int64_t {
    if (job.id.starts_with("never")) throw PermanentError{"never"};
    if (job.id.starts_with("later")) throw TransientError{"later"};
    bench.book(tx, job.id);
    return 2 * job.amount;
  };
}

/// `Bench`: `store()`, `Transaction`, `book(tx, id)`, and `booked()`, the ids of every committed effect, sorted.
template <class Bench>
void batch_behaviours() {
  Bench bench;
  const auto booked = [&] { return bench.booked(); };
  const IdempotentConsumer consumer{"batch.v1", bench.store(), worker(bench)};

  SECTION("every message has its outcome, in order") {
    const auto report = consumer.process_batch(std::vector<Job>{{"a", 1}, {"b", 2}, {"c", 3}});
    CHECK(statuses(report) == Told{"applied", "applied", "applied"});
    CHECK(report.all_acknowledged());
    CHECK(report.outcomes[1].value == 4);
    CHECK(report.outcomes[1].attempts == 1);
    CHECK(booked() == std::vector<std::string>{"a", "b", "c"});
    const auto again = consumer.process_batch(std::vector<Job>{{"c", 3}, {"a", 1}});
    CHECK(statuses(again) == Told{"duplicate", "duplicate"});
    CHECK(again.outcomes[0].value == 6);
    CHECK(again.outcomes[0].replayed);
  }
  SECTION("an empty batch is all acknowledged") {
    CHECK(consumer.process_batch(std::vector<Job>{}).all_acknowledged());
  }
  SECTION("the same event twice: the first is handled, the other answers from it") {
    const auto report = consumer.process_batch(std::vector<Job>{{"k1", 1}, {"k2", 1}, {"k1", 1}, {"k2", 9}});
    CHECK(statuses(report) == Told{"applied", "applied", "duplicate", "mismatch mismatch"});
    CHECK(report.outcomes[2].value == 2);
    CHECK(booked() == std::vector<std::string>{"k1", "k2"});
  }
  SECTION("one bad message in a hundred costs only itself") {
    std::vector<Job> jobs;
    for (int i = 0; i < 100; ++i) jobs.push_back({i == 57 ? "never" : "j" + std::to_string(i)});
    const auto report = consumer.process_batch(jobs);
    CHECK(report.failed() == std::vector<std::size_t>{57});
    CHECK(report.outcomes[57].status == Status::rejected);
    CHECK(booked().size() == 99);
    CHECK(first_unacknowledged(report) == 57);
  }
  SECTION("a duplicate is told at its own index") {
    CHECK(consumer(Job{"d"}).status == Status::applied);
    const auto report = consumer.process_batch(std::vector<Job>{{"a"}, {"b"}, {"c"}, {"d"}, {"e"}});
    CHECK(statuses(report) == Told{"applied", "applied", "applied", "duplicate", "applied"});
  }
  SECTION("messages of one ordering key stop at the first that is not acknowledged") {
    const auto report = consumer.process_batch(
        std::vector<Job>{{"a", 1, "g1"}, {"later", 1, "g1"}, {"b", 1, "g2"}, {"c", 1, "g1"}, {"d"}});
    CHECK(statuses(report) == Told{"applied", "deferred", "applied", "deferred held_back", "applied"});
    CHECK(report.outcomes[3].attempts == 0);
    CHECK(report.failed() == std::vector<std::size_t>{1, 3});
    CHECK(booked() == std::vector<std::string>{"a", "b", "d"});
  }
  SECTION("a mismatch holds back what comes after it in its ordering key, and nothing is stored of that") {
    CHECK(consumer(Job{"a", 1}).status == Status::applied);
    const auto report = consumer.process_batch(std::vector<Job>{{"a", 2, "g"}, {"b", 1, "g"}, {"c", 1, "h"}});
    CHECK(statuses(report) == Told{"mismatch mismatch", "deferred held_back", "applied"});
    CHECK(booked() == std::vector<std::string>{"a", "c"});
    CHECK(consumer(Job{"b"}).status == Status::applied);
  }
  SECTION("a repeated event holds its place in its ordering key") {
    const auto report = consumer.process_batch(std::vector<Job>{{"a", 1, "g"}, {"a", 2, "g"}, {"b", 1, "g"}});
    CHECK(statuses(report) == Told{"applied", "mismatch mismatch", "deferred held_back"});
  }
  SECTION("a message whose hold has ended is given back unstarted, and holds its ordering key back") {
    const auto past = std::chrono::steady_clock::now() - 1s;
    const auto report = consumer.process_batch(std::vector<Job>{{"a"}, {"b", 1, "g", past}, {"c", 1, "g"}});
    CHECK(statuses(report) == Told{"applied", "deferred", "deferred held_back"});
    CHECK(report.outcomes[1].attempts == 0);
    CHECK(booked() == std::vector<std::string>{"a"});
  }
  SECTION("a hold that ends while the batch is at work is seen at the message's turn") {
    auto now = std::chrono::steady_clock::now();
    const auto until = now + 10s;
    const IdempotentConsumer slow{"slow.v1", bench.store(),
                                  [&](typename Bench::Transaction& tx, const Job& job) {
                                    bench.book(tx, job.id);
                                    if (job.id == "slow") now += 20s;
                                  },
                                  Runtime{.clock = [&] { return now; }}};
    const auto report = slow.process_batch(std::vector<Job>{{"slow"}, {"b", 1, "", until}});
    CHECK(statuses(report) == Told{"applied", "deferred"});
    CHECK(booked() == std::vector<std::string>{"slow"});
  }
  SECTION("bad keys and bad events are rejected, each at its place") {
    const auto report = consumer.process_batch(std::vector<Job>{{"a"}, {""}, {"no event"}, {"b"}});
    CHECK(statuses(report) == Told{"applied", "rejected invalid_key", "rejected event_of_failed", "applied"});
    CHECK(booked() == std::vector<std::string>{"a", "b"});
  }
  SECTION("a retry policy counts for a message that failed, on its own") {
    int failures = 0;
    const IdempotentConsumer retried{"retried.v1", bench.store(),
                                     [&](typename Bench::Transaction& tx, const Job& job) {
                                       bench.book(tx, job.id);
                                       if (job.id == "b" && failures++ < 2) throw TransientError{"not yet"};
                                     },
                                     MaxAttempts{2}};
    const auto report = retried.process_batch(std::vector<Job>{{"a"}, {"b"}, {"c"}});
    CHECK(statuses(report) == Told{"applied", "applied", "applied"});
    CHECK(report.outcomes[1].attempts == 3);
    CHECK(booked() == std::vector<std::string>{"a", "b", "c"});
  }
  SECTION("once a message is decided, a configuration error is an outcome; before that it is thrown") {
    const IdempotentConsumer broken{
        "broken.v1", bench.store(),
        [&](typename Bench::Transaction&, const Job&) { throw ConfigurationError{"no"}; }};
    CHECK_THROWS_AS(static_cast<void>(broken.process_batch(std::vector<Job>{{"a"}, {"b"}})),
                    ConfigurationError);
    const auto report = broken.process_batch(std::vector<Job>{{""}, {"a"}, {"b"}});
    CHECK(report.outcomes[0].status == Status::rejected);
    for (const std::size_t i : {1U, 2U}) {
      CHECK(report.outcomes[i].status == Status::deferred);
      CHECK(report.outcomes[i].failure.value().kind == ErrorClass::configuration);
    }
    CHECK(booked().empty());
  }
  SECTION("a stop gives back what has not run") {
    std::stop_source stop;
    stop.request_stop();
    const auto report = consumer.process_batch(std::vector<Job>{{"a"}, {"b"}}, stop.get_token());
    CHECK(report.failed().size() == 2);
    CHECK(booked().empty());
  }
  SECTION("events beside messages that are not ours") {
    const std::vector<int> messages{7, 8};
    const IdempotentConsumer numbers{
        "numbers.v1", bench.store(),
        [&](typename Bench::Transaction& tx, const int& n) { bench.book(tx, std::to_string(n)); }};
    const std::vector<Event> events{{.id = "seven"}, {.id = "eight"}};
    CHECK(numbers.process_batch(events, messages).all_acknowledged());
    CHECK(booked() == std::vector<std::string>{"7", "8"});
    CHECK_THROWS_AS(static_cast<void>(numbers.process_batch(std::vector<Event>{}, messages)),
                    std::invalid_argument);
  }
  SECTION("a bulk handler gets all fresh messages at once, and a single one alone") {
    std::vector<std::size_t> sizes;
    const IdempotentConsumer bulk{"bulk.v1", bench.store(),
                                  [&](typename Bench::Transaction& tx, std::span<const Job* const> jobs) {
                                    sizes.push_back(jobs.size());
                                    for (const Job* job : jobs) {
                                      if (job->id == "never") throw PermanentError{"never"};
                                      bench.book(tx, job->id);
                                    }
                                  }};
    CHECK(bulk(Job{"b"}).status == Status::applied);
    CHECK(statuses(bulk.process_batch(std::vector<Job>{{"a"}, {"b"}, {"c"}})) ==
          Told{"applied", "duplicate", "applied"});
    CHECK(sizes == std::vector<std::size_t>{1, 2});
    CHECK(statuses(bulk.process_batch(std::vector<Job>{{"d"}, {"never"}, {"e"}})) ==
          Told{"applied", "rejected", "applied"});
    CHECK(booked() == std::vector<std::string>{"a", "b", "c", "d", "e"});
    sizes.clear();
    CHECK(bulk.process_batch(std::vector<Job>{{"a"}, {"b"}}).all_acknowledged());
    CHECK(sizes.empty());
  }
  SECTION("lease handlers run one by one") {
    std::set<std::uint64_t> tokens;
    const IdempotentConsumer mail{"mail.v1", bench.store(), [&](Lease& lease, const Job& job) {
                                    tokens.insert(lease.token());
                                    return job.id;
                                  }};
    const auto report = mail.process_batch(std::vector<Job>{{"a"}, {"b"}, {"a"}});
    CHECK(statuses(report) == Told{"applied", "applied", "duplicate"});
    CHECK(report.outcomes[2].value == "a");
    CHECK(tokens.size() == 2);
  }
  SECTION("a window is kept in a batch, and an event before it is refused") {
    const IdempotentConsumer windowed{"windowed.v1", bench.store(), worker(bench),
                                      ConsumerOptions{.window = 1h}};
    const std::vector<Event> events{{.id = "new"},
                                    {.id = "old", .occurred_at = std::chrono::system_clock::now() - 2h}};
    CHECK(statuses(windowed.process_batch(events, std::vector<Job>{{"new"}, {"old"}})) ==
          Told{"applied", "rejected beyond_window"});
    CHECK(booked() == std::vector<std::string>{"new"});
  }
}

}  // namespace idem::tests::batches
