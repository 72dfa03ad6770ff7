#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/alerts.sh PROGRAM
#
# Checks examples/operations/alerts.yml with promtool (Debian: prometheus): its syntax, when its alerts fire, that
# each metric in it is one that the library writes (PROGRAM prints them all), and that each chapter of the runbook
# which it names is there. What PROGRAM prints must be what Prometheus reads.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
operations=$here/../examples/operations
alerts=$operations/alerts.yml
if ! command -v promtool >/dev/null; then
  echo "promtool is missing: install Debian's package prometheus" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$1" >"$work/written"
promtool check metrics <"$work/written"
promtool check rules "$alerts"
cp "$alerts" "$here/alerts/rules.yml" "$work"
promtool test rules "$work/rules.yml"

status=0
names() { sort -u | grep -E '^(idem|messaging)_'; }
awk '/^# TYPE/ { print $3; if ($4 == "histogram") print $3 "_bucket\n" $3 "_sum\n" $3 "_count" }' "$work/written" |
  names >"$work/known"
grep -Eo '\b(idem|messaging)_[a-z_]+' "$alerts" | names >"$work/used"
if unknown=$(comm -13 "$work/known" "$work/used") && [ -n "$unknown" ]; then
  printf 'alerts.yml names metrics that nobody writes:\n%s\n' "$unknown" >&2
  status=1
fi

# A heading's anchor: lower case, blanks as hyphens.
sed -n 's/^## //p' "$operations/runbook.md" | tr 'A-Z ' 'a-z-' | sort -u >"$work/chapters"
sed -n 's/.*runbook: runbook\.md#//p' "$alerts" | sort -u >"$work/named"
if missing=$(comm -13 "$work/chapters" "$work/named") && [ -n "$missing" ]; then
  printf 'alerts.yml names chapters that runbook.md has not:\n%s\n' "$missing" >&2
  status=1
fi
if [ ! -s "$work/used" ] || [ ! -s "$work/named" ]; then
  echo "alerts.yml names no metric, or no chapter" >&2
  status=1
fi
exit "$status"
