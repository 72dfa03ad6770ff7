# SPDX-License-Identifier: MIT
#
# awk -f medians.awk -f targets.awk results.csv: what was aimed at, and what came out. A report, not a test.

function judge(text, value, least, most) {
  if (value == "") verdict = "not measured"
  else if (least != "" && value < least || most != "" && value > most) verdict = "MISSED"
  else verdict = "met"
  counted[verdict]++
  printf "%-12s  %-62s %s %-6s  %s\n", verdict, text, least != "" ? ">=" : "<=", least != "" ? least : most, \
         value == "" ? "-" : sprintf("%.3g", value)
}

# Of two rates.
function ratio(a, b, workers, added_ms,   x, y) {
  x = rate(a, workers, added_ms)
  y = rate(b, workers, added_ms)
  return x < 0 || y <= 0 ? "" : x / y
}

function at(text, workers, added_ms) {
  return text ": " workers " worker" (workers > 1 ? "s" : "") (added_ms ? ", 1 ms away" : "")
}

function micro(what,   value) {
  value = median("micro", what, 1, 0, "ns")
  return value < 0 ? "" : value
}

function grown(ids, keys,   few, many) {
  few = median("growth", "10000 keys: ids " ids, 1, 0, "us")
  many = median("growth", keys " keys: ids " ids, 1, 0, "us")
  return few < 0 || many < 0 ? "" : many / few
}

END {
  a = "a plain transaction"; b = "b by hand"; c = "c idem"; h = "h pgbench: four prepared statements"
  d = "d idem: batch of 100"; e = "e idem: batch of 100 in bulk"; i = "i idem: one message"
  for (workers = 1; workers <= 8; workers += 7) {
    judge(at("time of c / a plain transaction", workers, 0), ratio(a, c, workers, 0), "", 1.25)
    judge(at("time of c / a plain transaction", workers, 1), ratio(a, c, workers, 1), "", 1.05)
    judge(at("time of c / by hand", workers, 0), ratio(b, c, workers, 0), "", 0.95)
    judge(at("time of c / by hand", workers, 1), ratio(b, c, workers, 1), "", 0.80)
    judge(at("rate of c / pgbench", workers, 0), ratio(c, h, workers, 0), 0.90, "")
    judge(at("rate of a batch / c", workers, 0), ratio(d, c, workers, 0), 3, "")
    judge(at("rate of a batch in bulk / c", workers, 0), ratio(e, c, workers, 0), 10, "")
    judge(at("rate of a batch in bulk / c", workers, 1), ratio(e, c, workers, 1), 50, "")
    judge(at("rate of one message / a plain transaction", workers, 1), ratio(i, a, workers, 1), 2.2, "")
    judge(at("rate of duplicates redelivered / by hand", workers, 0), \
          ratio("f duplicates: idem redelivered", "f duplicates: by hand", workers, 0), 1.5, "")
  }
  judge(at("rate of one message / pgbench", 1, 0), ratio(i, h, 1, 0), 1.0, "")
  log_bytes = median("messages", "f duplicates: idem", 1, 0, "bytes of log per 1000")
  judge("log written by 1,000 duplicates, bytes", log_bytes < 0 ? "" : log_bytes, "", 0)
  judge("retry decision, ns", micro("retry_decision"), "", 20)
  judge("MemoryStore duplicate, ns", micro("duplicate/keys:1"), "", 500)
  judge("MemoryStore duplicate, 1 million keys, ns", micro("duplicate/keys:1000000"), "", 500)
  judge("MemoryStore applied, ns", micro("applied_in_an_empty_store"), "", 2000)
  judge("MemoryStore applied, 1 million keys, ns", micro("applied_among_1_million_keys"), "", 2000)
  judge("time with 1 million keys in order / with 10,000", grown("in order", 1000000), "", 1.15)
  judge("  as above, without waiting for the disk", grown("in order: no wait for the disk", 1000000), "", 1.15)
  judge("time with 10 million keys in order / with 10,000", grown("in order", 10000000), "", 1.15)
  judge("  as above, without waiting for the disk", grown("in order: no wait for the disk", 10000000), "", 1.15)
  printf "%d met, %d missed, %d not measured\n", counted["met"], counted["MISSED"], counted["not measured"]
}
