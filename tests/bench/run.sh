#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/bench/run.sh [--quick] [--ten-million] [--million-events] [FOLDER]
#
# Installs what is missing (Debian, as root), builds the benchmarks with -O2, and runs them on a private PostgreSQL whose
# settings are the server's own (fsync and synchronous_commit are on). FOLDER (default: build/bench) is left with
# results.csv, table.md, messages.svg and targets.txt. About 10 minutes on two quiet cores.
#   ./tests/bench/run.sh tests/bench/results     makes anew what README shows
#   --quick             tells only whether everything still runs: under a minute; its numbers mean nothing
#   --ten-million       growth with 10 million keys as well: some more minutes, and 8 GB
#   --million-events    the memory of a worker over 1,000,000 events instead of 50,000
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bench=$root/tests/bench
. "$root/tests/support/prepare.sh"

# What runs with the server; see the last line.
if [ "${1:-}" = --with-server ]; then
  shift
  programs=$1 parts=$2 rounds=$3 seconds=$4 growth=$5 events=$6
  "$programs/messages" "$parts/1-messages" "$rounds" "$seconds"
  # shellcheck disable=SC2086 # arguments
  "$programs/growth" "$parts/2-growth" $growth
  "$programs/memory" "$parts/3-memory" "$events"
  exit
fi

quick='' sizes="10000 1000000" events=50000 folder=$root/build/bench
for argument in "$@"; do
  case $argument in
    --quick) quick=yes ;;
    --ten-million) sizes="10000 1000000 10000000" ;;
    --million-events) events=1000000 ;;
    -*) sed -n '4,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) folder=$argument ;;
  esac
done

needed=()
pkg-config --exists libpqxx fmt libcrypto libpq || needed+=(libpqxx-dev libfmt-dev libssl-dev libpq-dev)
command -v c++ >/dev/null || [ -n "${CXX:-}" ] || needed+=(g++)
postgres_binaries >/dev/null || needed+=(postgresql)
pkg-config --exists benchmark || needed+=(libbenchmark-dev)
command -v gnuplot >/dev/null || needed+=(gnuplot-nox)
if [ ${#needed[@]} -gt 0 ]; then install_packages "${needed[@]}"; fi

programs=$root/build/bench/programs
mkdir -p "$programs" "$folder"
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

compiler=${CXX:-c++}
if command -v ccache >/dev/null; then compiler="ccache $compiler"; fi
flags=$(pkg-config --cflags --libs libpqxx libpq fmt libcrypto benchmark)
optimise=-O2
if [ -n "$quick" ]; then optimise=-O0; fi
# shellcheck disable=SC2086 # the compiler and its flags are words
build_one() {
  $compiler -std=c++20 $optimise -DNDEBUG -I"$root/include" -I"$root/tests" -c "$bench/$1.cpp" -o "$programs/$1.o" $flags
  $compiler "$programs/$1.o" -o "$programs/$1" $flags -pthread
}
jobs=()
for name in micro messages growth memory; do
  build_one "$name" &
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done

if [ -n "$quick" ]; then
  settings=(1 0.05 "1 5 1000 2000" 1000)
  micro=(--benchmark_min_time=0.01 "--benchmark_filter=-million|1000000")
else
  settings=(9 0.3 "9 150 $sizes" "$events")
  micro=(--benchmark_min_time=0.1 --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true)
fi

load=$(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null || true)
"$programs/micro" --benchmark_format=csv "${micro[@]}" 2>/dev/null >"$parts/micro.csv"
# A line for each repetition, as the other programs write them: the CPU's time, and the allocations.
awk -F, '/^name,/ { started = 1; next }
  started { gsub(/"/, ""); if ($1 ~ /_(mean|median|stddev|cv)$/) next
    printf "micro,%s,1,0,%d,%.1f,ns\n", $1, ++round[$1], $4
    printf "micro,%s,1,0,%d,%.1f,allocations\n", $1, round[$1], $NF }' "$parts/micro.csv" | LC_ALL=C sort -s -t, -k2,2 >"$parts/4-micro"
"$root/tests/support/with_postgres.sh" "${BASH_SOURCE[0]}" --with-server "$programs" "$parts" "${settings[@]}"

{
  echo "benchmark,what,workers,added_ms,round,value,unit"
  cat "$parts"/[1-4]-*
} >"$folder/results.csv"
awk -f "$bench/medians.awk" -f "$bench/table.awk" "$folder/results.csv" >"$folder/table.md"
awk -f "$bench/medians.awk" -f "$bench/plot.awk" "$folder/results.csv" >"$parts/plot.dat"
gnuplot -e "data='$parts/plot.dat'; out='$folder/messages.svg'" "$bench/messages.gp"
{
  echo "$(nproc) CPUs; load average before: $load, after: $(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null || true)"
  awk -f "$bench/medians.awk" -f "$bench/targets.awk" "$folder/results.csv"
} | tee "$folder/targets.txt"
