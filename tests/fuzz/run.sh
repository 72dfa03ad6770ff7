#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tests/fuzz/run.sh [SECONDS] [TARGET...]
#
# Builds the fuzz targets with clang++ and feeds each for so many seconds (default 60), beginning with its corpus. What
# is found is left in build/fuzz. Needs clang++ with its libFuzzer (Debian: clang, libclang-rt-dev).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
seconds=${1:-60}
if [ $# -gt 0 ]; then shift; fi
if [ $# -eq 0 ]; then set -- key json codec stored; fi
out=$root/build/fuzz
mkdir -p "$out"
status=0
for target in "$@"; do
  mkdir -p "$out/$target"
  # shellcheck disable=SC2046 # flags are words
  clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    -I"$root/include" -I"$root/tests" "$root/tests/fuzz/$target.cpp" -o "$out/$target.bin" \
    $(pkg-config --cflags --libs fmt libcrypto)
  echo "-- $target"
  # Found inputs go to the first folder; the corpus of the tree is only read.
  "$out/$target.bin" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$out/$target-" "$out/$target" "$root/tests/fuzz/corpus/$target" || status=1
done
exit "$status"
