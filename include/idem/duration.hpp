// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace idem {

/// The one unit of time spans in this library; every `std::chrono` duration of integers converts to it.
///
/// Range: about ±292 years. Arithmetic of ours saturates at the ends, it never wraps.
using Duration = std::chrono::nanoseconds;

}  // namespace idem
