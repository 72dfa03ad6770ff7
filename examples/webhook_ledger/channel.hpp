// SPDX-License-Identifier: MIT
#pragma once

// What the broker and its workers say to each other, over a local socket that keeps packets whole.

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include <idem/duration.hpp>

namespace webhook_ledger {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) noexcept : fd_{fd} {}
  Fd(Fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

[[noreturn]] inline void throw_errno(const std::string& what) {
  throw std::system_error{errno, std::generic_category(), what};
}

/// The longest line of input: a packet fits into the socket's buffer.
inline constexpr std::size_t longest_text = 100'000;

/// From the broker: a message, and how often this copy of it has been handed out.
struct Post {
  std::uint32_t number = 0;
  std::uint32_t received = 0;
  std::string text = {};
};

enum class Verdict : std::uint8_t { acknowledge, redeliver, dead_letter };

/// From a worker: what is to become of a message, and what is worth counting.
struct Reply {
  std::uint32_t number = 0;
  Verdict verdict = Verdict::redeliver;
  std::uint8_t was_duplicate = 0;
  std::uint8_t resolved_a_doubt = 0;
  std::int64_t redeliver_after_ns = 0;
  std::array<char, 200> reason{};
};

/// Closed: the other side is gone, or has hung up. Full: it has not read what it was sent before.
enum class Sent { yes, full, closed };

template <class Header>
[[nodiscard]] Sent send_packet(const Fd& socket, const Header& header, std::string_view text, int flags = 0) {
  std::string packet(sizeof header, '\0');
  std::memcpy(packet.data(), &header, sizeof header);
  packet += text;
  while (::send(socket.get(), packet.data(), packet.size(), flags | MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) return Sent::full;
    if (errno == EPIPE || errno == ECONNRESET) return Sent::closed;
    if (errno != EINTR) throw_errno("send to the other process");
  }
  return Sent::yes;
}

enum class Received { packet, nothing_yet, closed };

/// Fills `packet`. Several threads may wait on one socket: each packet goes to one of them.
[[nodiscard]] inline Received receive_packet(const Fd& socket, std::string& packet, int flags = 0) {
  packet.resize(longest_text + sizeof(Reply));
  for (;;) {
    const auto size = ::recv(socket.get(), packet.data(), packet.size(), flags);
    if (size > 0) {
      packet.resize(static_cast<std::size_t>(size));
      return Received::packet;
    }
    if (size == 0) return Received::closed;
    if (errno == EAGAIN) return Received::nothing_yet;
    // A process that died with mail unread leaves this error in front of what it had answered before.
    if (errno != EINTR && errno != ECONNRESET) throw_errno("receive from the other process");
  }
}

struct PostHeader {
  std::uint32_t number = 0;
  std::uint32_t received = 0;
};

[[nodiscard]] inline Sent send_post(const Fd& socket, const Post& post) {
  return send_packet(socket, PostHeader{post.number, post.received}, post.text, MSG_DONTWAIT);
}

[[nodiscard]] inline std::optional<Post> receive_post(const Fd& socket) {
  std::string packet;
  if (receive_packet(socket, packet) != Received::packet) return std::nullopt;
  PostHeader header;
  std::memcpy(&header, packet.data(), sizeof header);
  return Post{header.number, header.received, packet.substr(sizeof header)};
}

}  // namespace webhook_ledger
