// expect: ExponentialBackoff: cap must not be below base
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr auto policy = ExponentialBackoff{5s, 100ms} | FullJitter{};
