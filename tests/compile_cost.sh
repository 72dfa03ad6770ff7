#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/compile_cost.sh [ROUNDS]
#
# What including the library costs a compiler, beside what its user would include anyway: the seconds of user time, the
# least of several interleaved rounds (default 7), and their ratio. For a quiet machine; it judges nothing.
#   idem/idem.hpp      against the standard headers and fmt that its declarations call for: at most 1.3 is aimed at
#   idem/postgres.hpp  against <pqxx/pqxx>: at most 1.6
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rounds=${1:-7}

unit() { # NAME: a unit of the headers in its input, which defines nothing else
  sed 's/.*/#include <&>/' >"$work/$1.cpp"
}

# What of the standard library and of others the headers name that come with HEADER.
named() {
  # shellcheck disable=SC2086 # flags are words
  ${CXX:-g++} -std=c++20 $flags -MM -I"$root/include" "$work/$1.cpp" | tr -s ' \\' '\n' | grep "^$root/include" |
    xargs sed -n 's/^#include <\([^>]*\)>.*/\1/p' | grep -v '^idem/' | sort -u
}

flags=$(pkg-config --cflags libpqxx fmt)
echo idem/idem.hpp | unit core
echo idem/postgres.hpp | unit postgres
named core >"$work/named"
unit core_base <"$work/named"
echo pqxx/pqxx | unit postgres_base

user_time() {
  local TIMEFORMAT=%U
  # shellcheck disable=SC2086
  { time ${CXX:-g++} -std=c++20 $flags -I"$root/include" -fsyntax-only "$work/$1.cpp"; } 2>&1
}

for ((round = 0; round < rounds; round++)); do
  for name in core_base core postgres_base postgres; do user_time $name >>"$work/$name.times"; done
done
least() { sort -n "$work/$1.times" | head -n 1; }
compare() { # TEXT UNIT BASE LIMIT
  awk -v text="$1" -v a="$(least "$2")" -v b="$(least "$3")" -v limit="$4" \
    'BEGIN { printf "%-50s %.2f s / %.2f s = %.2f (at most %s is aimed at)\n", text, a, b, a / b, limit }'
}
compare "idem/idem.hpp / the $(wc -l <"$work/named") headers that it names" core core_base 1.3
compare "idem/postgres.hpp / pqxx/pqxx" postgres postgres_base 1.6
