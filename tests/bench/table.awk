# SPDX-License-Identifier: MIT
#
# awk -f medians.awk -f table.awk results.csv: the medians as Markdown.

function cell(what, workers, added_ms,   own, plain) {
  own = rate(what, workers, added_ms)
  plain = rate("a plain transaction", workers, added_ms)
  return own < 0 ? " |" : sprintf(" %.0f (%.2f) |", own, own / plain)
}

END {
  print "Messages a second (as a multiple of the plain transaction's):\n"
  print "| | 1 worker | 8 workers | 1 worker, 1 ms away | 8 workers, 1 ms away |"
  print "|---|--:|--:|--:|--:|"
  for (i = 1; i <= names; i++) {
    split(order[i], part, FS)
    if (part[1] != "messages" || part[3] != "per second") continue
    print "| " part[2] " |" cell(part[2], 1, 0) cell(part[2], 8, 0) cell(part[2], 1, 1) cell(part[2], 8, 1)
  }
  print "\nEverything else:\n"
  print "| | | medians |"
  print "|---|---|---|"
  for (i = 1; i <= names; i++) {
    split(order[i], part, FS)
    if (part[1] == "messages" && part[3] == "per second") continue
    name = part[1] " | " part[2]
    if (!(name in cells)) rows[++count] = name
    value = median(part[1], part[2], 1, 0, part[3])
    cells[name] = cells[name] (cells[name] == "" ? "" : ", ") sprintf(value < 100 && value != int(value) ? "%.1f" : "%.0f", value) " " part[3]
  }
  for (i = 1; i <= count; i++) print "| " rows[i] " | " cells[rows[i]] " |"
}
