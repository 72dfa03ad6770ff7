// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include <idem/duration.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/session.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres::detail {

/// Sleep that can be ended. Thread safety: one thread sleeps, any may signal.
class RelayWake {
 public:
  /// Ends the sleep, or the next one where nobody sleeps.
  void signal() {
    const std::lock_guard lock{mutex_};
    signalled_ = true;
    if (sleeper_ != nullptr) sleeper_->request_stop();
  }

  void sleep(const Runtime& runtime, std::chrono::steady_clock::time_point until,
             const std::stop_token& stop) {
    std::stop_source woken;
    {
      const std::lock_guard lock{mutex_};
      if (std::exchange(signalled_, false)) return;
      sleeper_ = &woken;
    }
    const Up up{*this};
    const std::stop_callback on_stop{stop, [&woken] { woken.request_stop(); }};
    runtime.sleeper(until, woken.get_token());
  }

 private:
  struct Up {
    RelayWake& wake;
    explicit Up(RelayWake& w) : wake{w} {}
    Up(const Up&) = delete;
    Up& operator=(const Up&) = delete;
    ~Up() {
      const std::lock_guard lock{wake.mutex_};
      wake.sleeper_ = nullptr;
      wake.signalled_ = false;
    }
  };

  std::mutex mutex_;
  bool signalled_ = false;
  std::stop_source* sleeper_ = nullptr;
};

/// Listens on a channel, on a thread and a connection of its own, and signals what it hears.
///
/// It is a help, no more: it says nothing of a connection that it cannot have, and behind a transaction pooler
/// hears nothing.
class RelayListener {
 public:
  RelayListener(const Connector& connector, std::string channel, RelayWake& wake)
      : connector_{connector},
        channel_{std::move(channel)},
        wake_{wake},
        thread_{[this](const std::stop_token& stop) { run(stop); }} {}

 private:
  static constexpr Duration first_pause = std::chrono::seconds{1};
  static constexpr Duration longest_pause = std::chrono::minutes{1};
  /// For a peer that is gone without a word.
  static constexpr std::chrono::milliseconds proof_of_life = std::chrono::minutes{1};

  void run(const std::stop_token& stop) {
    Duration pause = first_pause;
    while (!stop.stop_requested()) {
      try {
        const Session session = connector_.open();
        pqxx::nontransaction{*session.connection}.exec("LISTEN " + identifier(channel_));
        wake_.signal();  // for what was told before
        pause = first_pause;
        listen(*session.connection, stop);
      } catch (const std::exception&) {  // the relay looks by itself, and meets what matters
      }
      idem::detail::sleep_until(idem::detail::saturating_add(std::chrono::steady_clock::now(), pause), stop);
      pause = (std::min)(2 * pause, longest_pause);
    }
  }

  void listen(pqxx::connection& connection, const std::stop_token& stop) {
    const int socket = connection.sock();
    const std::stop_callback on_stop{stop, [socket] { ::shutdown(socket, SHUT_RDWR); }};
    while (!stop.stop_requested() && connection.is_open()) {
      pollfd polled{socket, POLLIN, 0};
      const int ready = ::poll(&polled, 1, static_cast<int>(proof_of_life.count()));
      if (stop.stop_requested() || (ready < 0 && errno != EINTR)) return;
      if (ready < 0) continue;
      if (ready == 0) pqxx::nontransaction{connection}.exec("SELECT 1");
      connection.get_notifs();
      wake_.signal();
      if ((polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return;
    }
  }

  const Connector& connector_;
  std::string channel_;
  RelayWake& wake_;
  std::jthread thread_;
};

}  // namespace idem::postgres::detail
