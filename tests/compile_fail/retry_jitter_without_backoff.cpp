// expect: a jitter spreads the delay of a backoff
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr auto decision = (FullJitter{} | MaxAttempts{5}).decide({});
