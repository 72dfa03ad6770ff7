// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sys/socket.h>

#include "support/fault_proxy/desk.hpp"
#include "support/fault_proxy/socket.hpp"
#include "support/fault_proxy/wire.hpp"

namespace idem::tests {

/// One client and its server connection: relays message by message and carries out the desk's faults.
/// Not thread-safe: the proxy calls it under its lock.
class Connection {
 public:
  Connection(std::size_t number, Fd client, Fd server)
      : number_{number}, client_{std::move(client)}, server_{std::move(server)} {}

  [[nodiscard]] const Fd& client() const noexcept { return client_; }
  [[nodiscard]] const Fd& server() const noexcept { return server_; }
  [[nodiscard]] const Outbox& to_client() const noexcept { return to_client_; }
  [[nodiscard]] const Outbox& to_server() const noexcept { return to_server_; }
  /// A peer that is gone must not be polled: it would report its end for ever.
  [[nodiscard]] bool client_gone() const noexcept { return client_gone_; }
  [[nodiscard]] bool server_gone() const noexcept { return server_gone_; }
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  void read_client(Desk& desk, TimePoint due) {
    if (client_gone_) return;
    client_gone_ = receive(client_, from_client_) == PeerState::gone;
    relay_client(desk, due);
  }

  void read_server(Desk& desk, TimePoint due) {
    if (server_gone_) return;
    server_gone_ = receive(server_, from_server_) == PeerState::gone;
    relay_server(desk, due);
    if (!server_gone_ || ending_ || hanging_) return;
    if (pending_) {
      end(pending_->cut);
    } else {
      to_client_.push(std::exchange(from_server_, {}), due);
      end(std::nullopt);
    }
  }

  /// Sends what is due; when the connection is at its end and all is sent, closes it.
  void flush(Desk& desk, TimePoint now) {
    if (closed_) return;
    // Its end is noticed by reading, after the last words it may have left.
    if (to_client_.flush(client_, now) == PeerState::gone) to_client_.clear();
    if (to_server_.flush(server_, now) == PeerState::gone) to_server_.clear();
    if (!ending_ || !to_client_.empty() || !to_server_.empty()) return;
    close();
    if (to_fire_) desk.note_fired();
  }

  /// Lets go what a `hang_…` fault holds.
  void release(Desk& desk, TimePoint due) {
    if (!hanging_ || closed_) return;
    if (pending_->cut == Cut::hang_request) {
      deliver(std::move(held_), due);
    } else {
      to_client_.push(std::move(held_), due);
      desk.note_round_trip();
    }
    held_.clear();
    hanging_ = false;
    pending_.reset();
    if (server_gone_) return end(std::nullopt);
    relay_client(desk, due);
  }

  /// Ends both sockets now. `shutdown`, not `close`: it works on a socket that a forked child has too, and
  /// the descriptor stays ours while another thread may be polling it.
  void close() noexcept {
    closed_ = true;
    ::shutdown(client_.get(), SHUT_RDWR);
    ::shutdown(server_.get(), SHUT_RDWR);
  }

 private:
  void relay_client(Desk& desk, TimePoint due) {
    while (!pending_ && !ending_ && relay_client_message(desk, due)) {
    }
    // A fault that awaits the server's answer is carried to its end although nobody waits for it any more.
    if (client_gone_ && !ending_ && (!pending_ || hanging_)) end(std::nullopt);
  }

  [[nodiscard]] bool relay_client_message(Desk& desk, TimePoint due) {
    if (!started_) return relay_start(desk, due);
    std::optional<std::string> message = wire::take(from_client_, 5);
    if (!message) return false;
    const char type = message->front();
    note_sql(type, *message);
    exchange_ += *message;
    switch (type) {
      case 'Q':
      case 'F':
      case 'S': submit(desk, due); break;
      case 'P':
      case 'B':
      case 'D':
      case 'E':
      case 'C': break;  // kept: they are one exchange with the Sync to come
      default: to_server_.push(std::exchange(exchange_, {}), due);
    }
    return true;
  }

  [[nodiscard]] bool relay_start(Desk& desk, TimePoint due) {
    std::optional<std::string> packet = wire::take(from_client_, 4);
    if (!packet) return false;
    const auto code = packet->size() < 8 ? 0 : wire::big_endian(std::string_view{*packet}.substr(4));
    if (code == wire::ssl_request || code == wire::gss_request) {
      to_client_.push("N", due);
      return true;
    }
    started_ = true;
    if (code != wire::cancel_request) desk.connected(number_);
    to_server_.push(std::move(*packet), due);
    return true;
  }

  void note_sql(char type, std::string_view message) {
    const auto text = [&](std::size_t nth) { return wire::text_in(message, nth); };
    if (type == 'Q') sql_.append(text(0)).append(" ");
    // A prepared statement counts where it is bound to run, not where it is only prepared.
    if (type == 'B') sql_.append(statements_[std::string{text(1)}]).append(" ");
    if (type == 'P') statements_[std::string{text(0)}] = text(1);
    if (type == 'P' && !text(0).empty()) sql_.append("PREPARE ");
  }

  void submit(Desk& desk, TimePoint due) {
    std::string exchange = std::exchange(exchange_, {});
    const std::optional<Fault> fault = desk.choose(number_, std::exchange(sql_, {}), exchange.size());
    if (!fault) return deliver(std::move(exchange), due);
    switch (fault->cut) {
      case Cut::before_server: return end(fault->cut);
      case Cut::inside:
        to_server_.push(exchange.substr(0, std::min(fault->bytes, exchange.size() - 1)), due);
        return end(fault->cut);
      case Cut::answer_unawaited: deliver(std::move(exchange), due); return end(fault->cut);
      case Cut::hang_request:
        pending_ = fault;
        held_ = std::move(exchange);
        hanging_ = true;
        return desk.note_fired();
      case Cut::answer:
      case Cut::inside_answer:
      case Cut::hang_answer: pending_ = fault; return deliver(std::move(exchange), due);
    }
  }

  void deliver(std::string exchange, TimePoint due) {
    ++unanswered_;
    to_server_.push(std::move(exchange), due);
  }

  void relay_server(Desk& desk, TimePoint due) {
    std::string relayed;
    while (!ending_) {
      const std::optional<std::string> message = wire::take(from_server_, 5);
      if (!message) break;
      const char type = message->front();
      const bool ours = pending_ && !hanging_ && unanswered_ == 1;
      (ours ? held_ : relayed) += *message;
      const bool ready = type == 'Z' && unanswered_ > 0;
      if (ready) --unanswered_;
      if (ready && !ours) desk.note_round_trip();
      // CopyInResponse: the server waits for data which a client without that answer will not send.
      if (ours && (ready || type == 'G')) {
        to_client_.push(std::exchange(relayed, {}), due);
        answered(desk, due);
      }
    }
    to_client_.push(std::move(relayed), due);
  }

  /// The whole answer to the pending fault's exchange is here: the server has finished with it.
  void answered(Desk& desk, TimePoint due) {
    if (pending_->cut == Cut::hang_answer && !client_gone_) {
      hanging_ = true;
      return desk.note_fired();
    }
    if (pending_->cut == Cut::inside_answer) {
      to_client_.push(held_.substr(0, std::min(pending_->bytes, held_.size() - 1)), due);
    }
    end(pending_->cut);
  }

  /// Closes both sockets once everything let through so far is sent.
  void end(std::optional<Cut> to_fire) {
    ending_ = true;
    to_fire_ = to_fire.has_value();
    from_client_.clear();
    from_server_.clear();
  }

  std::size_t number_;
  Fd client_;
  Fd server_;
  std::string from_client_;
  std::string from_server_;
  Outbox to_client_;
  Outbox to_server_;
  bool started_ = false;
  bool client_gone_ = false;
  bool server_gone_ = false;
  bool ending_ = false;
  bool to_fire_ = false;
  bool closed_ = false;

  std::string exchange_;  // the exchange being collected, and its SQL
  std::string sql_;
  std::map<std::string, std::string> statements_;
  std::size_t unanswered_ = 0;  // exchanges the server has and has not answered

  std::optional<Fault> pending_;  // awaits the answer, or the release
  std::string held_;
  bool hanging_ = false;
};

}  // namespace idem::tests
