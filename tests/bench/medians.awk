# SPDX-License-Identifier: MIT
#
# Reads results.csv; to be followed by table.awk or targets.awk.
#   median(benchmark, what, workers, added_ms, unit)   of its rounds; -1: not measured

BEGIN { FS = "," }

FNR > 1 {
  name = $1 FS $2 FS $3 FS $4 FS $7
  values[name, ++rounds[name]] = $6
  if (!((what = $1 FS $2 FS $7) in known)) { known[what]; order[++names] = what }
}

function median(benchmark, what, workers, added_ms, unit,   name, n, i, j, sorted, value) {
  name = benchmark FS what FS workers FS added_ms FS unit
  n = rounds[name]
  if (!n) return -1
  for (i = 1; i <= n; i++) {
    value = values[name, i] + 0
    for (j = i - 1; j > 0 && sorted[j] > value; j--) sorted[j + 1] = sorted[j]
    sorted[j + 1] = value
  }
  return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}

function rate(what, workers, added_ms) { return median("messages", what, workers, added_ms, "per second") }
