// expect: ExponentialBackoff: base must be above zero
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr ExponentialBackoff none{0s, 5s};
