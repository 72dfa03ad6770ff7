#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/matrix.sh [LEG...]
#
# The suite on every system that is promised, leg by leg; a failed leg does not stop the others, and one that cannot be
# set up has failed. Ends with a table. As root where a leg is a chroot (tests/chroot.sh).
#   host      this machine: the whole suite
#   trixie    Debian 13, its own compiler, libraries and PostgreSQL: headers, unit and PostgreSQL tests
#   forky     Debian testing: the same
#   clang     Debian 13's clang++ (19): headers and unit tests
#   cxx23     Debian 13's g++ as C++23: headers and unit tests
# IDEM_TARGETS="idem_headers"  in the chroots: builds and runs only that
# IDEM_MATRIX_MINUTES          for all of it (default 60): what is not done by then has failed
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
. tests/support/prepare.sh

deadline=$((SECONDS + ${IDEM_MATRIX_MINUTES:-60} * 60))
# What is not done in time is ended with its children: a process group of its own.
in_time() { timeout --kill-after=20 $((deadline > SECONDS ? deadline - SECONDS : 1)) "$@"; }

# on SUITE TARGETS TESTS: on another Debian, only these targets and tests.
on() {
  local targets=${IDEM_TARGETS:-$2} tests=$3
  if [ "$targets" = idem_headers ]; then tests='^headers$'; fi
  IDEM_TARGETS=$targets in_time ./tests/chroot.sh "$1" --tests-regex "$tests"
}
host() { tests/support/versions.sh && IDEM_TARGETS='' in_time ./tests/run.sh; }
trixie() { on trixie "idem_headers idem_tests idem_pg_tests" '^(headers$|unit/|pg/)'; }
forky() { on forky "idem_headers idem_tests idem_pg_tests" '^(headers$|unit/|pg/)'; }
clang() { IDEM_PRESET=clang on trixie "idem_headers idem_tests" '^(headers$|unit/)'; }
cxx23() { IDEM_PRESET=cxx23 on trixie "idem_headers idem_tests" '^(headers$|unit/)'; }

legs=("$@")
if [ $# -eq 0 ]; then legs=(host trixie forky clang cxx23); fi
install_missing || exit 1
if ! command -v mmdebstrap >/dev/null; then install_packages mmdebstrap || exit 1; fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
table=
status=0
for leg in "${legs[@]}"; do
  printf '\n---- %s\n' "$leg"
  began=$SECONDS
  verdict=passed
  # An unknown name is a leg that cannot be set up.
  (set -e; "$leg") 2>&1 | tee "$log"
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    verdict=FAILED
    status=1
  fi
  versions=$(sed -n 's/^versions: //p' "$log" | tail -n 1)
  tests=$(sed -nE 's/.*, ([0-9]+) tests? failed out of ([0-9]+).*/\2 tests, \1 failed/p' "$log" | tail -n 1)
  table+=$(printf '%-8s %-6s %5d s  %-22s %s' "$leg" "$verdict" $((SECONDS - began)) "${tests:-no tests}" \
    "${versions:-not set up}")$'\n'
done

printf '\n%s' "$table"
exit "$status"
