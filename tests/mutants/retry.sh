#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What retry policies get wrong elsewhere, and the tests that notice.

. "$(dirname "$0")/../support/mutants.sh"

mutant "a drawn delay is clamped, not its window" retry/sample.hpp \
  's/\+ drawn\.high\)/+ (drawn.high < width \/ 2 ? drawn.high * 2 : width - 1))/' \
  retry/jitter.test.cpp "a fleet that fails in step does not come back in step"
mutant "a draw copies the engine" retry/sample.hpp 's/Engine& engine\) \{/Engine engine) {/' retry/sample.test.cpp
mutant "each loop copies the engine" retry/loop.hpp 's/Engine& engine\) \{/Engine engine) {/' \
  retry/loop.test.cpp "loops that share an engine do not draw the same delays"
mutant "one attempt too many" retry/limit.hpp 's/failures >= attempts_/failures > attempts_/' retry/limit.test.cpp
mutant "the cap is applied before the overflow is checked" retry/backoff.hpp \
  's/doublings >= 63 \|\| base_\.count\(\) > \(cap_\.count\(\) >> doublings\)/(base_.count() << (doublings \& 63)) > cap_.count()/' \
  retry/backoff.test.cpp
mutant "hints are asked after the elapsed limit" retry/policy.hpp \
  's/jitter, hint, attempts, elapsed, /jitter, attempts, elapsed, hint, /' retry/limit.test.cpp
mutant "a hint is capped in silence" retry/limit.hpp \
  's/draft\.end\(RetryVerdict::redeliver, RetryReason::retry_after_beyond_limit\)/return wait_at_least(limit_, draft)/' \
  retry/limit.test.cpp
mutant "the guard of the hold is forgotten" retry/limit.hpp \
  's/saturating_subtract\(\*state\.hold_left, guard_\)/saturating_subtract(*state.hold_left, {})/' retry/limit.test.cpp
mutant "a refund is rounded to a whole token" retry/budget.hpp \
  's/refund_\{refund_percent\}/refund_{(refund_percent + 50) \/ 100 * 100}/' retry/budget.test.cpp
mutant "a budget is charged by deciding" retry/loop.hpp \
  's/if \(!step\.retry\(\)\) return step;/if (!policy_.withdraw() || !step.retry()) return step;/' retry/loop.test.cpp
mutant "the longest sleep is one wait" runtime.hpp \
  's/wait_until\(\(std::min\)\(until, saturating_add\(moment, slice\)\)\)/wait_until(until)/' \
  runtime.test.cpp

verdict
