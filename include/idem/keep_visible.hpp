// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include <idem/duration.hpp>

namespace idem {

/// Holds the transport's own lease on a message while its handler runs: `extend` is called every `every`.
struct KeepVisible {
  Duration every;
  std::function<void()> extend;
};

}  // namespace idem
