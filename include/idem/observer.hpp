// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>

#include <idem/duration.hpp>
#include <idem/event.hpp>
#include <idem/key.hpp>
#include <idem/outcome.hpp>

namespace idem {

/// Something that happened to a message on its way.
enum class Observed {
  attempt_failed,            ///< an attempt failed; `failure` says how
  retrying,                  ///< it will be tried again in this call, after `delay`
  in_doubt,                  ///< the answer to a COMMIT was lost; its fate is being found out
  fingerprint_not_compared,  ///< a duplicate whose fingerprint is missing, or of another scheme or revision
  value_not_decoded,         ///< a duplicate whose stored value this version cannot read
  keep_visible_failed,       ///< the transport's hold could not be extended; told from a thread of its own
  dead_lettered,             ///< the record of the dead letter is committed; `failure` is its cause
  dead_letter_failed,        ///< it could not be recorded and is brought back; `failure` says why as well
  decided                    ///< the call ends with `status` and `action`, after `elapsed`
};

/// What an observer is told. The references and pointers hold during the call only.
struct Observation {
  Observed what;
  const Key& key;
  const Event& event;
  std::uint32_t attempts = 0;         ///< handler starts so far
  const Failure* failure = nullptr;   ///< or none
  Duration delay{};                   ///< `retrying`: before the next attempt; `decided`: redeliver_after
  Duration elapsed{};                 ///< `decided`: since the call began
  Status status = Status::deferred;   ///< `decided`
  Action action = Action::redeliver;  ///< `decided`
  bool resolved_in_doubt = false;     ///< `decided`
};

/// Watches what consumers do: logs, metrics, traces.
///
/// `observe` is called on the caller's thread, from many threads at once. What it throws is dropped: an
/// observer never changes an outcome. Messages whose key is invalid have no key, and are not observed.
template <class T>
concept Observer = requires(T& observer, const Observation& observation) {
  observer.observe(observation);
};

/// Watches nothing.
struct NoObserver {
  void observe(const Observation&) const noexcept {}
};

}  // namespace idem
