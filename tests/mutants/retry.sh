#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Breaks the retry headers on purpose, one fault at a time and in a copy, and demands that a test notices.
# Uses CXX (default g++) and CXXFLAGS from the environment; leaves nothing behind.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cxx=${CXX:-g++}
flags="-std=c++20 -O0 ${CXXFLAGS:-}"
caught=0
missed=0

printf '#define CATCH_CONFIG_MAIN\n#include "support/catch.hpp"\n' >"$work/main.cpp"
$cxx $flags -I"$root/tests" -c "$work/main.cpp" -o "$work/main.o"
libraries=-pthread
if printf '#if !__has_include(<catch2/catch_all.hpp>)\n#error\n#endif\n' | $cxx $flags -fsyntax-only -xc++ - 2>"$work/log"; then
  libraries="-pthread -lCatch2Main -lCatch2"
fi

# build INCLUDE TEST: 0 if it is built, 1 if the compiler refused it.
build() {
  $cxx $flags -I"$1" -I"$root/tests" "$root/tests/$2" "$work/main.o" $libraries -o "$work/test" >"$work/log" 2>&1
}

# mutant NAME HEADER SED TEST [NAME OF THE TEST CASE]
mutant() {
  name=$1 header=$2 edit=$3 test=$4 only=${5:-}
  if [ ! -e "$work/sound-$(basename "$test")" ]; then
    if ! build "$root/include" "$test" || ! "$work/test" >"$work/log" 2>&1; then
      cat "$work/log" >&2
      echo "$test does not hold on the headers as they are" >&2
      exit 2
    fi
    : >"$work/sound-$(basename "$test")"
  fi
  rm -rf "$work/include"
  cp -r "$root/include" "$work/include"
  sed -E "$edit" "$root/include/idem/$header" >"$work/include/idem/$header"
  if cmp -s "$root/include/idem/$header" "$work/include/idem/$header"; then
    echo "$name: the edit of $header no longer applies" >&2
    exit 2
  fi
  if ! build "$work/include" "$test"; then
    # A constant that no longer holds is a catch; a fault that is not C++ is a mistake in this script.
    if grep -Eq 'static assertion|static_assert|constant expression' "$work/log"; then
      verdict="caught while compiling"
    else
      cat "$work/log" >&2
      exit 2
    fi
  elif [ -n "$only" ] && "$work/test" "$only" >"$work/log" 2>&1; then
    verdict=MISSED
  elif [ -z "$only" ] && "$work/test" >"$work/log" 2>&1; then
    verdict=MISSED
  else
    verdict=caught
  fi
  if [ "$verdict" = MISSED ]; then missed=$((missed + 1)); else caught=$((caught + 1)); fi
  echo "$name: $verdict"
}

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
  's/wait_until\(std::min\(until, saturating_add\(moment, slice\)\)\)/wait_until(std::max(until, moment + slice))/' \
  runtime.test.cpp

echo "$caught caught, $missed missed"
[ "$missed" -eq 0 ]
