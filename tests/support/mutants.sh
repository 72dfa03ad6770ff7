# SPDX-License-Identifier: MIT
#
# Sourced by tests/mutants/*.sh: breaks a header on purpose, one fault at a time and in a copy, and demands that a test
# notices. Uses CXX (default g++) and CXXFLAGS from the environment; leaves nothing behind.
#   needs LIBRARY...                            pkg-config names that the tests link
#   mutant NAME HEADER SED TEST [TEST CASE]     one fault; a test case narrows what is run
#   verdict                                     the last line, and the exit status

set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cxx=${CXX:-g++}
if command -v ccache >/dev/null; then cxx="ccache $cxx"; fi
flags="-std=c++20 -O0 ${CXXFLAGS:-}"
libraries=-pthread
caught=0
missed=0

needs() {
  flags="$flags $(pkg-config --cflags "$@")"
  libraries="$libraries $(pkg-config --libs "$@")"
}

# build INCLUDE TEST: 0 if it is built, 1 if the compiler refused it.
build() {
  if [ ! -e "$work/main.o" ]; then
    $cxx $flags -I"$root/tests" -c "$root/tests/support/catch_main.cpp" -o "$work/main.o"
    if printf '#if !__has_include(<catch2/catch_all.hpp>)\n#error\n#endif\n' | $cxx $flags -fsyntax-only -xc++ - 2>"$work/log"; then
      libraries="$libraries -lCatch2"
    fi
  fi
  $cxx $flags -I"$1" -I"$root/tests" -c "$root/tests/$2" -o "$work/test.o" >"$work/log" 2>&1 &&
    $cxx "$work/test.o" "$work/main.o" $libraries -o "$work/test" >"$work/log" 2>&1
}

# run [TEST CASE]: a mutant may hang where the sound code does not.
run() {
  timeout 300 "$work/test" ${1:+"$(printf "%s" "$1" | sed "s/,/\\\\,/g")"} >"$work/log" 2>&1
}

mutant() {
  name=$1 header=$2 edit=$3 test=$4 only=${5:-}
  sound="$work/sound-$(printf '%s' "$test$only" | tr -c 'a-zA-Z0-9' '_')"
  if [ ! -e "$sound" ]; then
    if ! build "$root/include" "$test" || ! run "$only"; then
      cat "$work/log" >&2
      echo "$test does not hold on the headers as they are" >&2
      exit 2
    fi
    : >"$sound"
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
    if ! grep -Eq 'static assertion|static_assert|constant expression' "$work/log"; then
      cat "$work/log" >&2
      echo "$name: does not compile" >&2
      exit 2
    fi
    result="caught while compiling"
  elif run "$only"; then
    result=MISSED
  else
    result=caught
  fi
  if [ "$result" = MISSED ]; then missed=$((missed + 1)); else caught=$((caught + 1)); fi
  echo "$name: $result"
}

verdict() {
  echo "$caught caught, $missed missed"
  [ "$missed" -eq 0 ]
}
