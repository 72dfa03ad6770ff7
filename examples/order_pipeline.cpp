// SPDX-License-Identifier: MIT
//
// Webhook -> handler -> outbox -> relay -> second consumer, with connections cut and messages sent twice all the
// while. Both consumers deduplicate, so in the end both tables have the same total.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "support/fault_proxy.hpp"

using namespace std::chrono_literals;

namespace {

// [publish]
struct OrderPlaced {  // what the webhook says
  std::string order_id, customer;
  std::int64_t cents;
};

idem::Event event_of(const OrderPlaced& m) {
  return {.id = m.order_id, .fingerprint = idem::fingerprint_of(m.customer, m.cents)};
}

// The row and the message are committed together, or neither.
void take_order(idem::postgres::Transaction& tx, const OrderPlaced& m) {
  idem::postgres::exec(tx, "INSERT INTO pipeline.orders VALUES ($1, $2)", m.order_id, m.cents);
  enqueue(tx, {.topic = "orders", .key = m.customer, .payload = m.order_id + ' ' + std::to_string(m.cents)});
}

// What arrives on the other side, perhaps more than once, and then with the same id.
struct OrderMessage {
  std::string id, payload;
};

idem::Event event_of(const OrderMessage& m) {
  return {.id = m.id, .fingerprint = idem::fingerprint_bytes(m.payload)};
}

void ship_order(idem::postgres::Transaction& tx, const OrderMessage& m) {
  const auto space = m.payload.find(' ');
  idem::postgres::exec(tx, "INSERT INTO pipeline.shipments VALUES ($1, $2)", m.payload.substr(0, space),
                       std::stoll(m.payload.substr(space + 1)));
}
// [publish]

/// At least once, in no particular order.
template <class Message>
class Queue {
 public:
  void put(Message message) {
    const std::lock_guard lock{mutex_};
    messages_.push_back(std::move(message));
  }
  [[nodiscard]] std::optional<Message> take() {
    const std::lock_guard lock{mutex_};
    if (messages_.empty()) return std::nullopt;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::deque<Message> messages_;
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_{seed} {}
  [[nodiscard]] bool one_in(unsigned n) {
    const std::lock_guard lock{mutex_};
    return engine_() % n == 0;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 engine_;
};

/// Handles what is in the queue until it is told to stop; what is not acknowledged goes back.
template <class Consumer, class Message>
void work(const std::stop_token& stop, const Consumer& consumer, Queue<Message>& queue) {
  while (!stop.stop_requested()) {
    auto message = queue.take();
    if (!message)
      std::this_thread::sleep_for(1ms);
    else if (consumer(*message).action != idem::Action::acknowledge)
      queue.put(*std::move(message));
  }
}

std::int64_t value(pqxx::connection& connection, const std::string& sql) {
  pqxx::nontransaction tx{connection};
  const pqxx::result rows = tx.exec(sql);
  return rows[0][0].as<std::int64_t>();
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::random_device{}();
  std::cout << "seed " << seed << '\n';
  constexpr int orders = 200;
  const char* socket = std::getenv("PGHOST");
  if (socket == nullptr) {
    std::cerr << "PGHOST is not set: it names the folder of the server's socket\n";
    return EXIT_FAILURE;
  }

  idem::PostgresStore direct{""};
  direct.create_schema();
  pqxx::connection witness{""};
  {
    pqxx::nontransaction tx{witness};
    tx.exec(
        "DROP SCHEMA IF EXISTS pipeline CASCADE; CREATE SCHEMA pipeline;"
        "CREATE TABLE pipeline.orders (id text, cents bigint); CREATE TABLE pipeline.shipments (id text, cents bigint)");
  }

  idem::tests::FaultProxy proxy{socket};
  proxy.arm_plan({.seed = seed,
                  .before_server = 8,
                  .inside = 4,
                  .answer_unawaited = 8,
                  .answer = 12,
                  .inside_answer = 4,
                  .refuse = 10});
  idem::PostgresStore store{proxy.dsn()};
  const idem::IdempotentConsumer take{"take-order.v1", store, take_order};
  const idem::IdempotentConsumer ship{"ship-order.v1", store, ship_order};

  Dice dice{seed};
  Queue<OrderPlaced> webhooks;
  std::int64_t total = 0;
  for (int i = 0; i < orders; ++i) {
    const OrderPlaced order{std::to_string(seed) + '-' + std::to_string(i),
                            "customer-" + std::to_string(i % 17), 100 + i};
    total += order.cents;
    do webhooks.put(order);
    while (dice.one_in(3));  // delivered again
  }

  Queue<OrderMessage> broker;
  std::atomic<int> sent_twice{0};
  const auto publish = [&](const idem::Outgoing& outgoing) {
    if (dice.one_in(10)) throw idem::TransientError{"the broker says: not now"};
    broker.put({outgoing.message.id, outgoing.message.payload});
    if (dice.one_in(10)) {
      ++sent_twice;
      throw idem::TransientError{"the broker's answer was lost"};
    }
  };

  const auto end = std::chrono::steady_clock::now() + 60s;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&](const std::stop_token& stop) { work(stop, take, webhooks); });
      threads.emplace_back([&](const std::stop_token& stop) { work(stop, ship, broker); });
      threads.emplace_back([&](const std::stop_token& stop) {
        idem::postgres::OutboxRelay relay{
            store, publish, idem::ExponentialBackoff{5ms, 50ms} | idem::FullJitter{} | idem::MaxAttempts{50}};
        relay.run(stop);
      });
    }
    const std::string done =
        "SELECT (SELECT count(*) FROM pipeline.orders) + (SELECT count(*) FROM pipeline.shipments)";
    while (value(witness, done) < 2 * orders && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(20ms);
  }  // stopped and joined

  const auto taken = value(witness, "SELECT sum(cents) FROM pipeline.orders");
  const auto shipped = value(witness, "SELECT sum(cents) FROM pipeline.shipments");
  std::cout << orders << " orders of " << total << " cents: taken " << taken << ", shipped " << shipped
            << "; " << proxy.fired() << " connections cut, " << sent_twice << " messages sent twice\n";
  return taken == total && shipped == total ? EXIT_SUCCESS : EXIT_FAILURE;
}
