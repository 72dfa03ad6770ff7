// SPDX-License-Identifier: MIT
#pragma once

#include <csignal>
#include <stdexcept>
#include <string>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.hpp"

namespace idem::tests {

/// Runs this program again, for a hidden test case that kills itself, and demands that it did. What the test case is
/// to know is in the environment.
inline void run_again_until_killed(std::string tag) {
  std::string self = "/proc/self/exe";
  std::string out = "-o";
  std::string nowhere = "/dev/null";
  char* arguments[] = {self.data(), tag.data(), out.data(), nowhere.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) != 0)
    throw std::runtime_error{"posix_spawn failed"};
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);
}

}  // namespace idem::tests
