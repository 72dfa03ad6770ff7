// expect: this retry policy has MaxAttempts twice: keep one
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

const auto policy = (ExponentialBackoff{100ms, 5s} | MaxAttempts{5}) | (FullJitter{} | MaxAttempts{5});
