// expect: DecorrelatedJitter grows from a base to a cap
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr auto decision = (ConstantBackoff{1s} | DecorrelatedJitter{}).decide({});
