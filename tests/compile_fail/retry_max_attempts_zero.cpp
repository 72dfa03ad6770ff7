// expect: MaxAttempts: the first attempt counts, so n is at least 1
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr MaxAttempts none{0};
