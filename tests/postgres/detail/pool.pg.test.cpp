// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/pool.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;
using namespace std::chrono_literals;

namespace {

PostgresOptions limited(const Playground& place, std::size_t connections) {
  PostgresOptions options = place.options();
  options.max_connections = connections;
  return options;
}

std::string named(const Playground& place) { return "application_name=" + place.schema().substr(0, 60); }

}  // namespace

TEST_CASE("four threads share one connection") {
  Playground place{"po_one"};
  PostgresStore store{named(place), limited(place, 1)};
  store.create_schema();
  std::mutex mutex;
  std::vector<int> pids;
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                const int pid = pid_of(tx);
                                const std::lock_guard lock{mutex};
                                pids.push_back(pid);
                              }};
  std::atomic<int> applied = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i)
        if (told(consumer(Note{std::to_string(t) + '-' + std::to_string(i)})) == "applied") ++applied;
    });
  for (auto& thread : threads) thread.join();
  CHECK(applied == 40);
  CHECK(place.count("effects") == "40");
  std::sort(pids.begin(), pids.end());
  CHECK(std::unique(pids.begin(), pids.end()) - pids.begin() == 1);
}

TEST_CASE("never more connections than max_connections, and no transaction left open in them") {
  Playground place{"po_limit"};
  PostgresStore store{named(place), limited(place, 3)};
  store.create_schema();
  await("the end of create_schema's connection", [&] {
    return query_value("SELECT count(*) FROM pg_stat_activity WHERE application_name = '" + place.schema() +
                       "'") == "0";
  });
  std::atomic<int> most = 0;
  IdempotentConsumer consumer{
      "c", store, [&](postgres::Transaction& tx, const Note& note) {
        place.write(tx, note.id);
        const int now = std::stoi(query_value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '" + place.schema() + "'"));
        int seen = most;
        while (seen < now && !most.compare_exchange_weak(seen, now)) continue;
        if (note.id.back() == '1') throw TransientError{"now and then"};
      }};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        static_cast<void>(consumer(Note{std::to_string(t) + '-' + std::to_string(i)}));
    });
  for (auto& thread : threads) thread.join();
  CHECK(most >= 1);
  CHECK(most <= 3);
  CHECK(query_value("SELECT count(*) FROM pg_stat_activity WHERE application_name = '" + place.schema() +
                    "' AND state <> 'idle'") == "0");
}

TEST_CASE("a handler that calls a consumer of a store with one connection is deferred, and does not hang") {
  Playground place{"po_nested"};
  PostgresStore store{server_dsn(), limited(place, 1)};
  store.create_schema();
  IdempotentConsumer inner{"i", store, [](postgres::Transaction&, const Note&) {},
                           ConsumerOptions{.wait_limit = 20ms}};
  std::string inside;
  IdempotentConsumer outer{"o", store, [&](postgres::Transaction& tx, const Note& note) {
                             place.write(tx, note.id);
                             const auto outcome = inner(note);
                             inside = told(outcome);
                             CHECK(outcome.failure->message.find("max_connections") != std::string::npos);
                           }};
  CHECK(told(outer(Note{"e"})) == "applied");
  CHECK(inside == "deferred 53300");
  CHECK(told(inner(Note{"e"})) == "applied");
}

TEST_CASE("a handler that delivers its own event again is told that it is in progress") {
  Playground place{"po_own"};
  PostgresStore store{server_dsn(), limited(place, 2)};
  store.create_schema();
  const std::function<std::string(const Note&)>* again = nullptr;
  std::string inside;
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                inside = (*again)(note);
                              },
                              ConsumerOptions{.wait_limit = 20ms}};
  const std::function<std::string(const Note&)> deliver = [&](const Note& note) {
    return told(consumer(note));
  };
  again = &deliver;
  CHECK(deliver(Note{"e"}) == "applied");
  CHECK(inside == "in_progress 55P03");
  CHECK(place.effect_ids() == "e");
}

TEST_CASE("one hot event does not starve the pool") {
  Playground place{"po_hot"};
  PostgresStore store{server_dsn(), limited(place, 2)};
  store.create_schema();
  std::latch inside{1};
  std::latch go_on{1};
  std::atomic<int> starts = 0;
  IdempotentConsumer hot{"c", store,
                         [&](postgres::Transaction& tx, const Note& note) {
                           place.write(tx, note.id);
                           ++starts;
                           inside.count_down();
                           go_on.wait();
                         },
                         ConsumerOptions{.wait_limit = 60s}};
  std::atomic<int> applied = 0;
  std::atomic<int> duplicates = 0;
  std::atomic<int> begun = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      ++begun;
      const auto answer = told(hot(Note{"hot"}));
      if (answer == "applied") ++applied;
      if (answer == "duplicate") ++duplicates;
    });
  inside.wait();
  while (begun < 8) std::this_thread::yield();
  IdempotentConsumer cold{"c", store,
                          [&](postgres::Transaction& tx, const Note& note) { place.write(tx, note.id); },
                          ConsumerOptions{.wait_limit = 20s}};
  int others = 0;
  for (int i = 0; i < 20; ++i)
    if (told(cold(Note{"cold" + std::to_string(i)})) == "applied") ++others;
  go_on.count_down();
  for (auto& thread : threads) thread.join();
  CHECK(others == 20);
  CHECK(starts == 1);
  CHECK(applied == 1);
  CHECK(duplicates == 7);
}

TEST_CASE("a stop ends the wait for a connection") {
  Playground place{"po_stop"};
  PostgresStore store{server_dsn(), limited(place, 1)};
  store.create_schema();
  IdempotentConsumer inner{"i", store, [](postgres::Transaction&, const Note&) {},
                           ConsumerOptions{.wait_limit = 1h}};
  std::string inside;
  IdempotentConsumer outer{"o", store, [&](postgres::Transaction&, const Note& note) {
                             std::stop_source stop;
                             std::thread asks{[&] { stop.request_stop(); }};
                             const auto outcome = inner(note, stop.get_token());
                             asks.join();
                             inside = told(outcome);
                             CHECK(outcome.attempts == 0);
                           }};
  CHECK(told(outer(Note{"e"})) == "applied");
  CHECK(inside.substr(0, 8) == "deferred");
}

TEST_CASE("a wait without a limit waits for a call of the same process too") {
  Playground place{"po_for_ever"};
  PostgresStore store{server_dsn(), limited(place, 2)};
  store.create_schema();
  std::latch inside{1};
  std::latch go_on{1};
  std::atomic<bool> second = false;
  IdempotentConsumer consumer{"c", store,
                              [&](postgres::Transaction& tx, const Note& note) {
                                place.write(tx, note.id);
                                inside.count_down();
                                go_on.wait();
                              },
                              ConsumerOptions{.wait_limit = Duration::max()}};
  std::string answers[2];
  std::thread first{[&] { answers[0] = told(consumer(Note{"e"})); }};
  inside.wait();
  std::thread waits{[&] {
    second = true;
    answers[1] = told(consumer(Note{"e"}));
  }};
  while (!second) std::this_thread::yield();
  // A call that did not wait would have its answer by now; being late here can only hide that.
  for (int i = 0; i < 20; ++i) static_cast<void>(query_value("SELECT 1"));
  go_on.count_down();
  first.join();
  waits.join();
  CHECK(answers[0] == "applied");
  CHECK(answers[1] == "duplicate");
}
