// expect: RetryBudget: refund_percent must be within 0 and 100
// SPDX-License-Identifier: MIT
#include <idem/retry.hpp>

using namespace std::chrono_literals;
using namespace idem;

constinit RetryBudget budget{500, 101};
