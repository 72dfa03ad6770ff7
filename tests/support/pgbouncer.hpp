// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "support/fault_proxy/socket.hpp"

namespace idem::tests {

/// A private PgBouncer in transaction pooling mode: its clients share `servers` connections, each for as long as
/// a transaction lasts. It ends with this object.
class PgBouncer {
 public:
  /// `server_folder`, `server_port`: of the socket of the server, or of whatever stands before it.
  ///
  /// Throws: std::runtime_error, with its log, when it does not come up.
  PgBouncer(std::size_t servers, const std::string& server_folder, const std::string& server_port = port()) {
    if (::mkdtemp(folder_.data()) == nullptr) throw_errno("mkdtemp " + folder_);
    const std::string script = std::filesystem::path{__FILE__}.replace_filename("pgbouncer.sh");
    const std::string count = std::to_string(servers);
    const std::string own_port = port();
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ == 0) {
      const int output = ::open((folder_ + "/output").c_str(), O_WRONLY | O_CREAT, 0600);
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
      ::execl(script.c_str(), script.c_str(), folder_.c_str(), own_port.c_str(), count.c_str(),
              server_folder.c_str(), server_port.c_str(), nullptr);
      ::_exit(127);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{30};
    while (!connect_to(folder_ + "/.s.PGSQL." + own_port)) {
      const bool ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
      if (ended) pid_ = -1;
      if (ended || std::chrono::steady_clock::now() > end) {
        const std::string said = text_of("output") + text_of("log");
        stop();
        throw std::runtime_error{"PgBouncer (Debian: apt-get install pgbouncer) did not come up: " + said};
      }
      std::this_thread::yield();
    }
  }
  PgBouncer(const PgBouncer&) = delete;
  PgBouncer& operator=(const PgBouncer&) = delete;
  ~PgBouncer() { stop(); }

  /// User and database come from PGUSER and PGDATABASE, as always with libpq.
  [[nodiscard]] std::string dsn() const { return "host=" + folder_; }
  /// Of its socket, which is at the port of the server's own.
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  [[nodiscard]] static std::string port() {
    const char* given = std::getenv("PGPORT");
    return given == nullptr || *given == '\0' ? "5432" : given;
  }

  [[nodiscard]] std::string text_of(const std::string& name) const {
    std::ifstream file{folder_ + "/" + name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  void stop() noexcept {
    if (pid_ > 0) {
      ::kill(pid_, SIGTERM);
      while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string folder_ = "/tmp/poolerXXXXXX";
  pid_t pid_ = -1;
};

}  // namespace idem::tests
