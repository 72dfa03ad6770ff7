#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Prints one line: what this machine builds and runs the tests with. IDEM_PRESET as for tests/run.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/postgres_binaries.sh"
of() { pkg-config --modversion "$1" 2>/dev/null; }

compiler=${CXX:-c++}
if [ "${IDEM_PRESET:-}" = clang ]; then compiler=clang++; fi
name="g++ $("$compiler" -dumpfullversion 2>/dev/null || true)"
if "$compiler" --version | grep -q clang; then name="clang++ $("$compiler" -dumpversion)"; fi
if [ "${IDEM_PRESET:-}" = cxx23 ]; then name+=" C++23"; fi
server=$("$(postgres_binaries)/postgres" --version)
printf 'versions: %s, libpqxx %s, fmt %s, Catch2 %s, PostgreSQL %s\n' "$name" "$(of libpqxx)" "$(of fmt)" \
  "$(of catch2-with-main || of catch2)" "$(sed -E 's/[^0-9]*([0-9.]+|[0-9]+[a-z]+[0-9]+).*/\1/' <<<"$server")"
