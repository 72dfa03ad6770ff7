// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include <idem/postgres/detail/session.hpp>

namespace idem::postgres::detail {

/// A bounded set of sessions.
///
/// A process forked from one that uses it opens sessions of its own (it must not fork while a call is at work).
///
/// Thread safety: any number of threads. Connections are opened outside the lock.
class Pool {
 public:
  /// A session on loan: closed when destroyed, unless it was given back.
  class Loan {
   public:
    Loan(Pool& pool, std::optional<Session> session) : pool_{&pool}, session_{std::move(session)} {}
    Loan(Loan&& other) noexcept
        : pool_{std::exchange(other.pool_, nullptr)}, session_{std::move(other.session_)} {}
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (pool_ == nullptr) return;
      session_.reset();
      pool_->closed();
    }

    [[nodiscard]] Session& operator*() noexcept { return *session_; }
    [[nodiscard]] Session* operator->() noexcept { return &*session_; }
    /// Whether the session has worked before: then it may have died since.
    [[nodiscard]] bool from_pool() const noexcept { return session_.has_value(); }
    /// Opens a session, a new one if there was one already. Throws as Connector::open.
    void open(const Connector& connector) {
      session_.reset();
      session_ = connector.open();
    }
    /// To be called only when the server confirmed that no transaction is open.
    void give_back() { std::exchange(pool_, nullptr)->returned(*std::move(session_)); }

   private:
    Pool* pool_;
    std::optional<Session> session_;
  };

  explicit Pool(std::size_t limit) : limit_{limit} { idle_.reserve(limit); }

  /// Waits for a place until `deadline` or a stop; nullopt when that comes first.
  [[nodiscard]] std::optional<Loan> take(std::chrono::steady_clock::time_point deadline,
                                         const std::stop_token& stop) {
    std::unique_lock lock{mutex_};
    if (owner_ != ::getpid()) abandon();
    if (!freed_.wait_until(lock, stop, deadline, [this] { return out_ < limit_; })) return std::nullopt;
    ++out_;
    std::optional<Session> session;
    if (!idle_.empty()) {
      session = std::move(idle_.back());
      idle_.pop_back();
    }
    return std::optional<Loan>{std::in_place, *this, std::move(session)};
  }

  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }

 private:
  void returned(Session session) {
    {
      const std::lock_guard lock{mutex_};
      idle_.push_back(std::move(session));  // reserved: cannot throw
      --out_;
    }
    freed_.notify_one();
  }

  void closed() noexcept {
    {
      const std::lock_guard lock{mutex_};
      --out_;
    }
    freed_.notify_one();
  }

  /// After a fork the sockets are the parent's: closing them would end its sessions as well.
  void abandon() {
    for (Session& session : idle_) static_cast<void>(session.connection.release());
    idle_.clear();
    out_ = 0;
    owner_ = ::getpid();
  }

  std::mutex mutex_;
  std::condition_variable_any freed_;
  std::vector<Session> idle_;
  std::size_t out_ = 0;
  std::size_t limit_;
  pid_t owner_ = ::getpid();
};

}  // namespace idem::postgres::detail
