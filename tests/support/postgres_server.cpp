// SPDX-License-Identifier: MIT
#include "support/postgres_server.hpp"

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

namespace idem::tests {
namespace {

// postgres_server.sh acts on the server of this run only; see with_postgres.sh.
void server(const std::string& verb) {
  if (std::system(("\"$IDEM_TEST_PGSERVER\" " + verb).c_str()) != 0) {
    throw std::runtime_error{"the test server did not " + verb + "; its log is in IDEM_TEST_PGLOG"};
  }
}

// These tests create, drop and kill: never on a server that merely happens to be the caller's default.
[[maybe_unused]] const bool on_a_server_of_our_own = [] {
  if (std::getenv("IDEM_TEST_PGDATA") == nullptr) {
    std::cerr << "These tests run on a throw-away server of their own: use ./tests/run.sh, or "
                 "tests/support/with_postgres.sh COMMAND\n";
    std::exit(1);
  }
  return true;
}();

}  // namespace

void crash_and_restart_server() {
  server("crash");
  server("start");
}
void restart_server() { server("restart"); }
void stop_server() { server("stop"); }
void start_server() { server("start"); }

}  // namespace idem::tests
