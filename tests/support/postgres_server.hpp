// SPDX-License-Identifier: MIT
#pragma once

namespace idem::tests {

/// Stops the server without a checkpoint, as a power cut does, and starts it again: every connection breaks,
/// and what was committed is recovered from the log.
///
/// A test that calls this belongs in a file named `*.alone.pg.test.cpp`: no other test runs meanwhile.
/// Throws: std::runtime_error when the server does not come back.
void crash_and_restart_server();

/// Stops the server, as an administrator does, and starts it again. As above.
void restart_server();

/// Stops the server until `start_server()`. As above.
void stop_server();
void start_server();

}  // namespace idem::tests
