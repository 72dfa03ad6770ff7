// expect: MaxElapsed: must be above zero
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr MaxElapsed none{0s};
