// SPDX-License-Identifier: MIT
#include <idem/postgres/relay.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <idem/postgres/relay_options.hpp>

#include "postgres/relay_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::relaying {

namespace {

using postgres::OutboxRelay;
using postgres::RelayOptions;

constexpr int keys = 50;
constexpr int writers = 3;

/// What arrived, and what must not have.
class Arrivals {
 public:
  void begin(const std::string& key) {
    const std::lock_guard lock{mutex_};
    if (!in_flight_.insert(key).second) problems_.push_back("two at once of " + key);
  }
  void end(const std::string& key) {
    const std::lock_guard lock{mutex_};
    in_flight_.erase(key);
  }
  /// The first arrivals of a key are in the order of their numbers.
  void arrive(const Outgoing& outgoing) {
    const std::lock_guard lock{mutex_};
    ++all_;
    if (!ids_.insert(outgoing.message.id).second) return;
    int& last = last_[outgoing.message.key];
    const int number = std::stoi(outgoing.message.payload);
    if (number <= last)
      problems_.push_back(outgoing.message.key + ": " + std::to_string(number) + " after " +
                          std::to_string(last));
    last = number;
  }
  [[nodiscard]] std::size_t distinct() const {
    const std::lock_guard lock{mutex_};
    return ids_.size();
  }
  [[nodiscard]] std::size_t all() const {
    const std::lock_guard lock{mutex_};
    return all_;
  }
  [[nodiscard]] std::vector<std::string> problems() const {
    const std::lock_guard lock{mutex_};
    return problems_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> in_flight_;
  std::set<std::string> ids_;
  std::map<std::string, int> last_;
  std::vector<std::string> problems_;
  std::size_t all_ = 0;
};

/// Writes its share of the messages, in order for each key, and rolls back every third transaction or so.
void write(const Tables& tables, int writer, int share, std::uint64_t seed) {
  SplitMix64 random{seed + static_cast<std::uint64_t>(writer)};
  pqxx::connection connection{server_dsn()};
  for (int done = 0; done < share;) {
    const int count = std::min(share - done, 1 + static_cast<int>(random() % 40));
    const bool fails = random() % 3 == 0;
    pqxx::work tx{connection};
    // Each writer has keys of its own: what other transactions insert has no order.
    tx.exec("INSERT INTO " + tables.schema +
            ".outbox (id, tenant, consumer, event_id, topic, key, payload) SELECT 'w" +
            std::to_string(writer) + "-' || i, '', 'c', 'e', 't', 'k' || ((i % " +
            std::to_string(keys / writers) + ") * " + std::to_string(writers) + " + " +
            std::to_string(writer) + "), convert_to(i::text, 'UTF8') " + "FROM generate_series(" +
            std::to_string(done + 1) + ", " + std::to_string(done + count) + ") i");
    if (fails) continue;
    tx.commit();
    done += count;
  }
}

}  // namespace

TEST_CASE("relays side by side, with failures of all kinds: everything arrives, each key in order") {
  const char* given = std::getenv("IDEM_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  CAPTURE(seed);
  const int share = 3'333;
  const bool at_once_many = GENERATE(false, true);
  Tables tables;
  Arrivals arrivals;
  std::stop_source stop;

  const auto relay = [&](std::uint64_t number) {
    SplitMix64 random{seed + 100 * number};
    const auto meet_fate = [&](const Outgoing& outgoing) {
      const auto fate = random() % 4'000;
      if (fate < 200) throw std::runtime_error{"refused"};
      if (fate < 204) throw BrokerDown{"down"};
      arrivals.arrive(outgoing);
      if (fate < 300) throw std::runtime_error{"the answer was lost"};
      if (fate == 300) execute(tables.cut_sql());
      std::this_thread::yield();
    };
    const RelayOptions options{
        .batch = 60, .poll = 5ms, .breaker = {.first_pause = 1ms, .longest_pause = 4ms}};
    if (at_once_many) {
      OutboxRelay many{tables.store,
                       [&](std::span<const Outgoing> batch) {
                         std::vector<Published> published;
                         for (const Outgoing& outgoing : batch) arrivals.begin(outgoing.message.key);
                         for (const Outgoing& outgoing : batch) {
                           try {
                             meet_fate(outgoing);
                             published.push_back(Published::sent());
                           } catch (const BrokerDown& e) {
                             published.push_back(Published::broker_down(e.what()));
                           } catch (const std::exception& e) {
                             published.push_back(Published::failed(e.what()));
                           }
                         }
                         for (const Outgoing& outgoing : batch) arrivals.end(outgoing.message.key);
                         return published;
                       },
                       at_once, options};
      return many.run(stop.get_token());
    }
    OutboxRelay one{tables.store,
                    [&](const Outgoing& outgoing) {
                      arrivals.begin(outgoing.message.key);
                      try {
                        meet_fate(outgoing);
                      } catch (...) {
                        arrivals.end(outgoing.message.key);
                        throw;
                      }
                      arrivals.end(outgoing.message.key);
                    },
                    at_once, options};
    one.run(stop.get_token());
  };
  {
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < writers; ++writer)
      threads.emplace_back([&, writer] { write(tables, writer, share, seed); });
    for (std::uint64_t number = 1; number <= 2; ++number)
      threads.emplace_back([&, number] { relay(number); });
    until([&] {
      return arrivals.distinct() == std::size_t{writers} * share &&
             query_value("SELECT count(*) FROM " + tables.schema + ".outbox WHERE sent_at IS NULL") == "0";
    });
    stop.request_stop();
  }
  std::cout << "relays side by side: seed " << seed << " (repeat with IDEM_TEST_SEED), " << arrivals.all()
            << " arrivals\n";
  CHECK(arrivals.problems() == Ids{});
  CHECK(arrivals.distinct() == std::size_t{writers} * share);
  CHECK(arrivals.all() > arrivals.distinct());
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox WHERE sent_at IS NOT NULL AND claimed_by IS NULL") ==
        std::to_string(writers * share));
}

}  // namespace idem::tests::relaying
