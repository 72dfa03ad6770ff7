// expect: this retry policy has two jitters: keep one
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

const auto policy = ExponentialBackoff{100ms, 5s} | FullJitter{} | MaxAttempts{5} | EqualJitter{};
