# SPDX-License-Identifier: MIT
#
# awk -f medians.awk -f plot.awk results.csv: what messages.gp draws.

function spread(what, workers, added_ms,   name, i, least, most) {
  name = "messages" FS what FS workers FS added_ms FS "per second"
  least = most = values[name, 1] + 0
  for (i = 2; i <= rounds[name]; i++) {
    if (values[name, i] + 0 < least) least = values[name, i] + 0
    if (values[name, i] + 0 > most) most = values[name, i] + 0
  }
  return sprintf(" %s %s %s", rate(what, workers, added_ms), least, most)
}

END {
  for (i = 1; i <= names; i++) {
    split(order[i], part, FS)
    if (part[1] == "messages" && part[3] == "per second")
      print "\"" part[2] "\"" spread(part[2], 1, 0) spread(part[2], 8, 0) spread(part[2], 1, 1) spread(part[2], 8, 1)
  }
}
