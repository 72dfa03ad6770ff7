// SPDX-License-Identifier: MIT
#pragma once

// A small message broker: at-least-once, like all of them.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include "channel.hpp"
#include "process.hpp"

namespace webhook_ledger {

/// What the broker saw. What a worker did and was killed before it could tell is not in here.
struct BrokerCounts {
  std::size_t messages = 0;    ///< every delivery once for each time its sender sent it
  std::size_t handed_out = 0;  ///< messages, and again those given back or lost with a worker
  std::size_t settled = 0;     ///< acknowledged or dead-lettered
  std::size_t duplicates = 0;  ///< acknowledged, without a new effect
  std::size_t given_back = 0;  ///< "redeliver"
  std::size_t dead_letters = 0;
  std::size_t doubts_resolved = 0;
  std::size_t workers_killed = 0;
};

/// Hands messages to worker processes until each is acknowledged, replacing the workers that die.
///
/// What a dead worker had in hand is handed out again, for nobody can know how far it had come.
class Broker {
 public:
  using Clock = std::chrono::steady_clock;
  struct Settings {
    std::vector<std::string> worker_arguments;
    std::size_t workers = 1;
    std::size_t in_hand = 1;  ///< messages one worker may hold at a time
    Clock::time_point deadline;
    std::function<void(const std::string& text, std::string_view reason)> on_dead_letter;
  };

  /// Sends each text one to four times, all of them shuffled.
  Broker(const std::vector<std::string>& texts, Settings settings, std::mt19937_64& random)
      : texts_{texts}, settings_{std::move(settings)}, random_{random} {
    for (std::size_t text = 0; text < texts.size(); ++text) {
      const auto copies = std::uniform_int_distribution<std::size_t>{1, 4}(random_);
      messages_.insert(messages_.end(), copies, {text, 0});
    }
    std::shuffle(messages_.begin(), messages_.end(), random_);
    for (std::size_t number = 0; number < messages_.size(); ++number) ready_.push_back(number);
    counts_.messages = messages_.size();
  }

  /// Returns when every message is settled and every worker has gone home. Calls `each_turn` in between.
  ///
  /// Throws: std::runtime_error — it takes too long, or a worker gave up; whatever `each_turn` throws.
  void run(const std::function<void()>& each_turn) {
    while (counts_.settled < messages_.size()) {
      if (Clock::now() > settings_.deadline)
        throw std::runtime_error{fmt::format(
            "time is up, with {} of {} messages settled: the server or the machine is too slow, or hangs",
            counts_.settled, messages_.size())};
      while (workers_.size() < settings_.workers) workers_.emplace_back(settings_.worker_arguments);
      hand_out();
      listen();
      each_turn();
    }
    for (Worker& worker : workers_) worker.process.hang_up();
    while (!workers_.empty() && Clock::now() < settings_.deadline) listen();
    workers_.clear();
  }

  /// Kills one of the workers that have something in hand, if there is one.
  void kill_one() {
    std::vector<Worker*> busy;
    for (Worker& worker : workers_)
      if (!worker.killed && !worker.in_hand.empty()) busy.push_back(&worker);
    if (busy.empty()) return;
    Worker& chosen = *busy[std::uniform_int_distribution<std::size_t>{0, busy.size() - 1}(random_)];
    chosen.process.kill();
    chosen.killed = true;
    ++counts_.workers_killed;
  }

  [[nodiscard]] const BrokerCounts& counts() const noexcept { return counts_; }

 private:
  struct Copy {
    std::size_t text;
    std::uint32_t received;
  };
  struct Worker {
    explicit Worker(const std::vector<std::string>& arguments) : process{arguments} {}
    Process process;
    std::set<std::size_t> in_hand = {};
    bool killed = false;
  };

  void hand_out() {
    while (!later_.empty() && later_.begin()->first <= Clock::now()) {
      ready_.push_back(later_.begin()->second);
      later_.erase(later_.begin());
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (Worker& worker : workers_) progress = hand_one_to(worker) || progress;
    }
  }

  bool hand_one_to(Worker& worker) {
    if (ready_.empty() || worker.killed || worker.in_hand.size() >= settings_.in_hand) return false;
    const std::size_t number = ready_.front();
    Copy& copy = messages_[number];
    const Post post{static_cast<std::uint32_t>(number), copy.received + 1, texts_[copy.text]};
    if (send_post(worker.process.socket(), post) != Sent::yes) return false;
    ready_.pop_front();
    worker.in_hand.insert(number);
    ++copy.received;
    ++counts_.handed_out;
    return true;
  }

  void listen() {
    std::vector<pollfd> sockets;
    for (const Worker& worker : workers_) sockets.push_back({worker.process.socket().get(), POLLIN, 0});
    ::poll(sockets.data(), static_cast<nfds_t>(sockets.size()), 2);
    for (auto worker = workers_.begin(); worker != workers_.end();)
      worker = hear(*worker) == Received::closed ? bury(worker) : std::next(worker);
  }

  Received hear(Worker& worker) {
    for (;;) {
      std::string packet;
      const Received received = receive_packet(worker.process.socket(), packet, MSG_DONTWAIT);
      if (received != Received::packet) return received;
      Reply reply;
      std::memcpy(&reply, packet.data(), sizeof reply);
      worker.in_hand.erase(reply.number);
      take(reply);
    }
  }

  void take(const Reply& reply) {
    counts_.doubts_resolved += reply.resolved_a_doubt;
    switch (reply.verdict) {
      case Verdict::acknowledge:
        counts_.duplicates += reply.was_duplicate;
        ++counts_.settled;
        break;
      case Verdict::redeliver:
        ++counts_.given_back;
        later_.emplace(Clock::now() + std::chrono::nanoseconds{reply.redeliver_after_ns}, reply.number);
        break;
      case Verdict::dead_letter:
        ++counts_.dead_letters;
        ++counts_.settled;
        settings_.on_dead_letter(texts_[messages_[reply.number].text], reply.reason.data());
        break;
    }
  }

  std::list<Worker>::iterator bury(std::list<Worker>::iterator worker) {
    const auto status = worker->process.wait();
    const bool went_home = counts_.settled == messages_.size() && status == 0;
    if (!worker->killed && !went_home)
      throw std::runtime_error{status ? fmt::format("a worker ended by itself, with exit status {}", *status)
                                      : std::string{"a worker was ended by a signal that is not ours"}};
    ready_.insert(ready_.end(), worker->in_hand.begin(), worker->in_hand.end());
    return workers_.erase(worker);
  }

  const std::vector<std::string>& texts_;
  Settings settings_;
  std::mt19937_64& random_;
  std::vector<Copy> messages_;
  std::deque<std::size_t> ready_;
  std::multimap<Clock::time_point, std::size_t> later_;
  std::list<Worker> workers_;
  BrokerCounts counts_;
};

}  // namespace webhook_ledger
