// expect: Redeliver counts deliveries and knows no elapsed time
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constexpr Redeliver later{ConstantBackoff{1min} | MaxElapsed{1h}};
