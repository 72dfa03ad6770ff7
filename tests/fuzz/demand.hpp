// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>

namespace idem {

/// Ends the process, as a fuzzer understands it, unless it holds.
inline void demand(bool holds) {
  if (!holds) std::abort();
}

}  // namespace idem
