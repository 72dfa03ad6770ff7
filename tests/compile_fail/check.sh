#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# check.sh SOURCE COMPILER [FLAG...]
#
# ok_*.cpp must compile. Any other must not, and the first error must hold the text after `// expect: ` in its
# first line: it is what a user reads.
set -euo pipefail
source=$1
shift
export LC_ALL=C

status=0
output=$("$@" -fsyntax-only "$source" 2>&1) || status=$?

case $(basename "$source") in
  ok_*)
    printf '%s\n' "$output"
    exit "$status"
    ;;
esac

expected=$(sed -n '1s|^// expect: ||p' "$source")
if [ -z "$expected" ]; then
  echo "$source: the first line must be \`// expect: <text of the error>\`"
  exit 1
fi
if [ "$status" -eq 0 ]; then
  echo "$source compiles, and must not; expected: $expected"
  exit 1
fi
first=$(printf '%s\n' "$output" | grep -m 1 'error: ' || true)
if [[ $first != *"$expected"* ]]; then
  printf 'The first error is not the sentence.\nexpected: %s\nfirst:    %s\n\n%s\n' "$expected" "$first" "$output" | head -n 60
  exit 1
fi
