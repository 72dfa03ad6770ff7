// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace idem::tests {

using TimePoint = std::chrono::steady_clock::time_point;

[[noreturn]] inline void throw_errno(const std::string& what) {
  throw std::system_error{errno, std::generic_category(), "FaultProxy: " + what};
}

/// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_{fd} {}
  Fd(Fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

[[nodiscard]] inline sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw std::invalid_argument{"FaultProxy: the socket path " + path + " is longer than the " +
                                std::to_string(sizeof address.sun_path - 1) +
                                " bytes a unix socket may have; put the server's socket in a shorter folder"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

[[nodiscard]] inline Fd unix_socket() {
  Fd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!fd) throw_errno("socket");
  return fd;
}

inline void make_non_blocking(const Fd& fd) {
  if (::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK) < 0) throw_errno("fcntl");
}

/// A listening socket that never blocks.
[[nodiscard]] inline Fd listen_on(const std::string& path) {
  Fd fd = unix_socket();
  const sockaddr_un address = unix_address(path);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0)
    throw_errno("bind " + path);
  if (::listen(fd.get(), 128) < 0) throw_errno("listen " + path);
  make_non_blocking(fd);
  return fd;
}

/// A connected socket that never blocks, or none when nobody listens.
[[nodiscard]] inline Fd connect_to(const std::string& path) {
  Fd fd = unix_socket();
  const sockaddr_un address = unix_address(path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) return Fd{};
  make_non_blocking(fd);
  return fd;
}

enum class PeerState { open, gone };

/// Appends some of what has arrived at `fd` to `buffer`.
[[nodiscard]] inline PeerState receive(const Fd& fd, std::string& buffer) {
  char chunk[16384];
  const ssize_t n = ::recv(fd.get(), chunk, sizeof chunk, 0);
  if (n > 0) buffer.append(chunk, static_cast<std::size_t>(n));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return PeerState::open;
  return n > 0 ? PeerState::open : PeerState::gone;
}

/// Bytes on their way to one socket, each with the time before which it is not sent.
class Outbox {
 public:
  void push(std::string bytes, TimePoint due) {
    if (bytes.empty()) return;
    if (!chunks_.empty() && due < chunks_.back().due) due = chunks_.back().due;
    chunks_.push_back({due, std::move(bytes)});
  }

  void clear() noexcept { chunks_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return chunks_.empty(); }

  [[nodiscard]] std::optional<TimePoint> next_due() const {
    return chunks_.empty() ? std::nullopt : std::optional{chunks_.front().due};
  }

  /// Sends what is due and fits, without blocking and without SIGPIPE.
  [[nodiscard]] PeerState flush(const Fd& fd, TimePoint now) {
    while (!chunks_.empty() && chunks_.front().due <= now) {
      std::string& bytes = chunks_.front().bytes;
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno == EAGAIN ? PeerState::open : PeerState::gone;
      if (static_cast<std::size_t>(n) == bytes.size()) {
        chunks_.pop_front();
      } else {
        bytes.erase(0, static_cast<std::size_t>(n));
      }
    }
    return PeerState::open;
  }

 private:
  struct Chunk {
    TimePoint due;
    std::string bytes;
  };
  std::deque<Chunk> chunks_;
};

}  // namespace idem::tests
