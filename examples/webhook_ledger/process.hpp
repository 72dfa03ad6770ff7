// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.hpp"

namespace webhook_ledger {

/// The descriptor on which a worker finds the broker.
inline constexpr int broker_descriptor = 3;

/// Another process of this program, and the socket to it. Killed and reaped at the latest by the destructor.
class Process {
 public:
  /// `arguments`: without the program's name.
  explicit Process(const std::vector<std::string>& arguments) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) throw_errno("socketpair");
    socket_ = Fd{ends[0]};
    const Fd theirs{ends[1]};

    std::vector<std::string> words{"webhook_ledger"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    // posix_spawn, not fork: this process has threads. A process group of its own: Ctrl-C is ours to handle.
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), broker_descriptor);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::system_error{error, std::generic_category(), "start a worker process"};
  }

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    kill();
    static_cast<void>(wait());
  }

  [[nodiscard]] const Fd& socket() const noexcept { return socket_; }
  /// No more messages: the worker ends when it has answered those it has.
  void hang_up() noexcept { ::shutdown(socket_.get(), SHUT_WR); }
  /// SIGKILL: no destructor runs over there.
  void kill() const noexcept {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }
  /// Waits for the end; the exit status, or nullopt when a signal ended it. To be called once.
  [[nodiscard]] std::optional<int> wait() noexcept {
    const pid_t pid = std::exchange(pid_, -1);
    if (pid <= 0) return std::nullopt;
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? std::optional{WEXITSTATUS(status)} : std::nullopt;
  }

 private:
  pid_t pid_ = -1;
  Fd socket_;
};

/// Somebody pressed Ctrl-C, or asked in another way for an end.
struct Interrupted {
  int signal;
};

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the program at once but wait to be noticed, so that
/// nothing is left running or lying about. Made before any thread.
class Interruptible {
 public:
  Interruptible() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    noticed_ = Fd{::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
    if (noticed_.get() < 0) throw_errno("signalfd");
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// Throws: Interrupted.
  void check() const {
    signalfd_siginfo info;
    if (::read(noticed_.get(), &info, sizeof info) == sizeof info)
      throw Interrupted{static_cast<int>(info.ssi_signo)};
  }

 private:
  sigset_t before_;
  Fd noticed_;
};

}  // namespace webhook_ledger
