// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include <idem/duration.hpp>

namespace idem {

/// Holds the transport's own lease on a message while its handler runs.
///
/// `extend` is called every `every` (above zero) on a thread of its own, which is joined before the call
/// returns. What it throws is told to the observer, and the handler goes on.
struct KeepVisible {
  Duration every;
  std::function<void()> extend;
};

}  // namespace idem
