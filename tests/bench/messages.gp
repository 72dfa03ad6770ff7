# SPDX-License-Identifier: MIT
#
# gnuplot -e "data='plot.dat'; out='messages.svg'" messages.gp
# data: contender, then median, least and most messages a second for each of the four settings.

set terminal svg size 900,480 font 'sans-serif,13' background 'white'
set output out
set logscale x
set xlabel "messages a second: median, least and most of the rounds"
set grid xtics lc rgb "#dddddd"
set key outside top center horizontal width -2
set yrange [*:*] reverse
set offsets 0, 0, 0.6, 0.6
set border 1
set tics nomirror
set ytics scale 0
set bars 0
setting(s) = s == 0 ? "1 worker" : s == 1 ? "8 workers" : s == 2 ? "1 worker, 1 ms away" : "8 workers, 1 ms away"
plot data using 2:0:yticlabels(1) with dots linecolor rgb "white" notitle, \
     for [s=0:3] data using (column(2 + 3 * s)):($0 + 0.15 * (s - 1.5)):(column(3 + 3 * s)):(column(4 + 3 * s)) \
       with xerrorbars pointtype (s % 2 ? 6 : 7) pointsize 0.7 linecolor rgb (s < 2 ? "#1f77b4" : "#d62728") title setting(s)
