// SPDX-License-Identifier: MIT
#pragma once

// A worker process, as the transport sees it: threads that take messages and answer each of them.

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include <idem/duration.hpp>

#include "channel.hpp"

namespace webhook_ledger {

/// The exit status of a worker whose set-up is wrong.
inline constexpr int worker_gave_up = 3;

/// A message in a worker's hands.
class Message {
 public:
  Message(const Fd& socket, Post post) : socket_{socket}, post_{std::move(post)} {
    reply_.number = post_.number;
  }

  [[nodiscard]] const std::string& text() const noexcept { return post_.text; }
  /// 1 = first delivery.
  [[nodiscard]] int received() const noexcept { return static_cast<int>(post_.received); }

  /// Only for the table at the end.
  void was_duplicate() noexcept { reply_.was_duplicate = 1; }
  void resolved_a_doubt() noexcept { reply_.resolved_a_doubt = 1; }

  void acknowledge() { answer(Verdict::acknowledge); }
  void redeliver(idem::Duration after) {
    reply_.redeliver_after_ns = after.count();
    answer(Verdict::redeliver);
  }
  void dead_letter(std::string_view reason) {
    reason.copy(reply_.reason.data(), reply_.reason.size() - 1);
    answer(Verdict::dead_letter);
  }

 private:
  void answer(Verdict verdict) {
    reply_.verdict = verdict;
    // When the broker is gone nobody waits for the answer, and the next message does not come.
    static_cast<void>(send_packet(socket_, reply_, {}));
  }

  const Fd& socket_;
  Post post_;
  Reply reply_;
};

/// Handles messages on so many threads until the broker hangs up. What `handle` throws ends the process.
template <class Handle>
void serve(const Fd& broker, std::size_t threads, const Handle& handle) {
  const auto work = [&] {
    try {
      while (auto post = receive_post(broker)) {
        Message message{broker, *std::move(post)};
        handle(message);
      }
    } catch (const std::exception& e) {
      fmt::print(stderr, "webhook_ledger: a worker stops: {}\n", e.what());
      std::fflush(stderr);
      ::_exit(worker_gave_up);
    }
  };
  std::vector<std::thread> team;
  for (std::size_t i = 0; i < threads; ++i) team.emplace_back(work);
  for (std::thread& thread : team) thread.join();
}

}  // namespace webhook_ledger
