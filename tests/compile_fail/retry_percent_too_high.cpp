// expect: ProportionalJitter: percent must be within 0 and 100
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr auto policy = ConstantBackoff{5s} | ProportionalJitter{120};
