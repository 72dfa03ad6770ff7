// expect: does not have a constant initializer
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constinit MaxElapsed none{0s};
