#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Every C++ block of README is a part of a program in examples/, word for word: `<!-- examples/FILE [NAME] -->` before
# the block names the lines between two `// [NAME]` comments. With --update the blocks are copied from the programs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

woven=$(mktemp)
trap 'rm -f "$woven"' EXIT
awk '
  function weave(file, name,    line, inside, found) {
    while ((getline line < file) > 0) {
      if (line ~ "^// \\[" name "\\]$") { inside = !inside; found = 1; continue }
      if (inside) print line
    }
    close(file)
    if (!found) { print "README names examples/ lines that are not there: " file " [" name "]" > "/dev/stderr"; exit 1 }
  }
  match($0, /^<!-- examples\/[a-z_]+\.cpp \[[a-z_]+\] -->$/) {
    file = $2; name = substr($3, 2, length($3) - 2); print; next
  }
  /^```cpp$/ {
    print
    if (file == "") { print "README has a C++ block that is no part of a program: line " NR > "/dev/stderr"; exit 1 }
    weave(file, name); file = ""; skipping = 1; next
  }
  /^```$/ { skipping = 0 }
  !skipping { print }
' README.md >"$woven"

if [ "${1:-}" = --update ]; then
  cat "$woven" >README.md
elif ! diff -u README.md "$woven"; then
  echo "README differs from examples/; tests/readme.sh --update copies them over" >&2
  exit 1
fi
