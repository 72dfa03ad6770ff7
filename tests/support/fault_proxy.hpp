// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <idem/duration.hpp>

#include "support/fault_proxy/connection.hpp"
#include "support/fault_proxy/desk.hpp"
#include "support/fault_proxy/plan.hpp"
#include "support/fault_proxy/socket.hpp"

namespace idem::tests {

enum class Refuse { no, yes };

/// Stands between PostgreSQL clients and their server, counts round trips, and breaks the connection exactly
/// where a test says.
///
///     FaultProxy proxy{server_socket_dir()};
///     proxy.arm({.cut = Cut::answer, .word = "COMMIT"});
///     pqxx::connection c{proxy.dsn()};
///
/// A fault is one of what a client sends in one go (an exchange, see `Cut`); start-up meets only
/// `refuse_connections` and `FaultPlan::refuse`. Faults armed one by one come before those of a plan.
///
/// One thread relays everything, so what happens to all connections has one order: that of `log()`.
/// Thread safety: everything may be called from any thread.
class FaultProxy {
 public:
  /// Throws: std::system_error when no socket can be made; std::invalid_argument when a path is too long.
  explicit FaultProxy(const std::string& server_socket_dir)
      : server_path_{server_socket_dir + "/.s.PGSQL." + server_port()} {
    (void)unix_address(server_path_);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) throw_errno("pipe2");
    wake_out_ = Fd{ends[0]};
    wake_in_ = Fd{ends[1]};
    thread_ = std::thread{[this] { run(); }};
  }

  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  ~FaultProxy() {
    change([this] { stopping_ = true; });
    thread_.join();
  }

  /// Names this proxy's socket; user and database come from PGUSER and PGDATABASE, as always with libpq.
  [[nodiscard]] std::string dsn() const { return "host=" + folder_.path + " port=5432"; }

  /// Adds a fault to the queue; see `Fault` for what it counts from.
  void arm(Fault fault) {
    change([&] { desk_.arm(std::move(fault)); });
  }
  /// Draws faults at random from now on.
  ///
  /// Throws: std::invalid_argument when the shares are above a thousand.
  void arm_plan(const FaultPlan& plan) {
    change([&] { desk_.arm_plan(plan); });
  }
  /// Forgets the faults that have not met their exchange, and the plan.
  void disarm() {
    change([&] { desk_.disarm(); });
  }

  /// Closes every new connection at once, as long as it says `yes`.
  void refuse_connections(Refuse refuse) {
    change([&] { refuse_ = refuse; });
  }
  /// Closes every connection that is open now.
  void cut_all() {
    change([this] {
      for (Connection& connection : connections_) connection.close();
    });
  }
  /// Lets go everything that a `hang_…` fault holds at the moment.
  void release() {
    change([this] {
      for (Connection& connection : connections_) connection.release(desk_, due());
    });
  }
  /// Adds at least this to every round trip from now on, half of it each way, start-up included.
  void set_delay(Duration round_trip) {
    change([&] { delay_ = round_trip; });
  }

  /// The exchanges whose whole answer was passed back to the client; start-up excluded.
  [[nodiscard]] std::size_t round_trips() const {
    return ask([this] { return desk_.round_trips(); });
  }
  /// The connections that clients have begun, refused ones excluded.
  [[nodiscard]] std::size_t connections() const {
    return ask([this] { return desk_.connections(); });
  }
  /// The faults that have done their work: sockets closed, or the hang begun.
  [[nodiscard]] std::size_t fired() const {
    return ask([this] { return desk_.fired(); });
  }
  /// Starts `round_trips`, `connections` and `fired` at zero again.
  void reset_counts() {
    change([this] { desk_.reset_counts(); });
  }

  /// Returns once `fired()` is at least `n`.
  ///
  /// Throws: std::runtime_error, with the log, when that takes longer than `limit`.
  void wait_fired(std::size_t n, Duration limit = std::chrono::seconds{30}) const {
    std::unique_lock lock{mutex_};
    if (changed_.wait_for(lock, limit, [&] { return desk_.fired() >= n; })) return;
    std::string text = "FaultProxy: " + std::to_string(desk_.fired()) + " faults have fired, not " +
                       std::to_string(n) + "; what was seen:";
    for (const std::string& line : desk_.log()) text.append("\n  ").append(line);
    throw std::runtime_error{text};
  }

  /// The last 65,536 things seen, as "<connection>: <first word of the SQL>[ ... COMMIT][ -> <cut>]", with
  /// "connect" and "refused" for new connections. Never holds a parameter or a literal.
  [[nodiscard]] std::vector<std::string> log() const {
    return ask([this] { return desk_.log(); });
  }

 private:
  /// A folder of its own for the socket, directly in /tmp because a socket's path is short.
  struct Folder {
    Folder() {
      if (::mkdtemp(path.data()) == nullptr) throw_errno("mkdtemp " + path);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      ::unlink(socket().c_str());
      ::rmdir(path.c_str());
    }
    [[nodiscard]] std::string socket() const { return path + "/.s.PGSQL.5432"; }

    std::string path = "/tmp/proxyXXXXXX";
  };

  /// PGPORT, as libpq reads it, or PostgreSQL's own default.
  [[nodiscard]] static std::string server_port() {
    const char* port = std::getenv("PGPORT");
    return port == nullptr || *port == '\0' ? "5432" : port;
  }

  template <typename F>
  std::invoke_result_t<F> ask(F question) const {
    const std::lock_guard lock{mutex_};
    return question();
  }

  template <typename F>
  void change(F what) {
    {
      const std::lock_guard lock{mutex_};
      what();
    }
    changed_.notify_all();
    (void)!::write(wake_in_.get(), "", 1);  // a full pipe wakes as well
  }

  [[nodiscard]] TimePoint due() const { return std::chrono::steady_clock::now() + delay_ / 2; }

  void run() {
    std::unique_lock lock{mutex_};
    while (!stopping_) {
      const TimePoint now = std::chrono::steady_clock::now();
      std::vector<pollfd> polled = to_poll(now);
      const std::optional<timespec> wait = until_next_due(now);
      lock.unlock();
      ::ppoll(polled.data(), static_cast<nfds_t>(polled.size()), wait ? &*wait : nullptr, nullptr);
      lock.lock();
      char bytes[64];
      while (::read(wake_out_.get(), bytes, sizeof bytes) > 0) {
      }
      const std::size_t fired_before = desk_.fired();
      serve(polled);
      if (polled[1].revents != 0) accept_clients();
      if (desk_.fired() != fired_before) changed_.notify_all();
    }
    connections_.clear();
  }

  /// The wake-up pipe, the listener, then client and server of each connection in order.
  [[nodiscard]] std::vector<pollfd> to_poll(TimePoint now) const {
    const auto events = [now](const Outbox& out) {
      return static_cast<short>(out.next_due() && *out.next_due() <= now ? POLLIN | POLLOUT : POLLIN);
    };
    std::vector<pollfd> polled{{wake_out_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& c : connections_) {
      polled.push_back({c.client_gone() ? -1 : c.client().get(), events(c.to_client()), 0});
      polled.push_back({c.server_gone() ? -1 : c.server().get(), events(c.to_server()), 0});
    }
    return polled;
  }

  [[nodiscard]] std::optional<timespec> until_next_due(TimePoint now) const {
    std::optional<Duration> least;
    for (const Connection& c : connections_) {
      for (const auto& next : {c.to_client().next_due(), c.to_server().next_due()}) {
        // What is due already waits for room in the socket, not for the clock.
        if (next && *next > now && (!least || *next - now < *least)) least = *next - now;
      }
    }
    if (!least) return std::nullopt;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*least);
    return timespec{static_cast<time_t>(seconds.count()), static_cast<long>((*least - seconds).count())};
  }

  void serve(const std::vector<pollfd>& polled) {
    std::size_t at = 2;
    for (auto c = connections_.begin(); c != connections_.end(); at += 2) {
      if (!c->closed() && polled[at].revents != 0) c->read_client(desk_, due());
      if (!c->closed() && polled[at + 1].revents != 0) c->read_server(desk_, due());
      c->flush(desk_, std::chrono::steady_clock::now());
      c = c->closed() ? connections_.erase(c) : std::next(c);
    }
  }

  void accept_clients() {
    for (;;) {
      Fd client{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!client) return;
      const std::size_t number = ++accepted_;
      Fd server = desk_.refuses() || refuse_ == Refuse::yes ? Fd{} : connect_to(server_path_);
      if (server) {
        connections_.emplace_back(number, std::move(client), std::move(server));
      } else {
        desk_.refused(number);
      }
    }
  }

  std::string server_path_;
  Folder folder_;
  Fd listener_ = listen_on(folder_.socket());
  Fd wake_out_;
  Fd wake_in_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Desk desk_;
  std::list<Connection> connections_;  // erased by the relaying thread alone
  std::size_t accepted_ = 0;
  Refuse refuse_ = Refuse::no;
  Duration delay_{0};
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace idem::tests
