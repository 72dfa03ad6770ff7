// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>

#include <idem/event.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>

namespace idem {

/// A message that was rejected, or whose id was taken, on its way to a sink. Holds during the call only.
struct DeadLetter {
  const Key& key;
  const Event& event;
  const Failure& failure;
};

/// Takes dead letters in and keeps them; returns once the record is committed, throws if it could not be
/// made.
template <class T>
concept DeadLetterSink = requires(T& sink, const DeadLetter& letter) {
  sink.record(letter);
};

}  // namespace idem
