// SPDX-License-Identifier: MIT
// Draws README's plot of retry delays: for each jitter, where the delays of 80 failing calls fall. With an argument,
// writes the SVG to that file; without one, checks that it can be drawn.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include <fmt/core.h>

#include <idem/retry.hpp>

using namespace std::chrono_literals;

constexpr auto backoff = idem::ExponentialBackoff{100ms, 5s};
constexpr auto attempts = idem::MaxAttempts{9};

constexpr int width = 760;
constexpr int row = 92;
constexpr int left = 150;

double x_of(idem::Duration delay) {
  return left + (width - left - 20) * std::chrono::duration<double>{delay}.count() / 5.0;
}

/// One line of dots for each retry, the first at the top.
template <class Policy>
std::string draw(const std::string& name, const Policy& policy, int place) {
  const int top = 30 + place * row;
  std::string svg =
      fmt::format("<text x='10' y='{}' fill='#222' stroke='none'>{}</text>\n<path d='", top + 44, name);
  for (std::uint64_t call = 1; call <= 80; ++call) {
    int retry = 0;
    for (const idem::Duration delay : idem::simulate(policy, call)) {
      svg += fmt::format("M{:.0f} {}h0", x_of(delay), top + 8 + 9 * retry);
      ++retry;
    }
    svg += '\n';
  }
  return svg + "'/>\n";
}

int main(int argc, char** argv) {
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' font-size='13'>\n"
      "<rect width='100%' height='100%' fill='white'/>\n<g stroke='#246' stroke-opacity='0.35' stroke-width='4' stroke-linecap='round' fill='none'>\n",
      width, 5 * row + 60);
  svg += draw("NoJitter", backoff | idem::NoJitter{} | attempts, 0);
  svg += draw("FullJitter", backoff | idem::FullJitter{} | attempts, 1);
  svg += draw("EqualJitter", backoff | idem::EqualJitter{} | attempts, 2);
  svg += draw("DecorrelatedJitter", backoff | idem::DecorrelatedJitter{} | attempts, 3);
  svg += draw("ProportionalJitter{20}", backoff | idem::ProportionalJitter{20} | attempts, 4);
  svg += "</g>\n<g fill='#444'>\n";
  for (int second = 0; second <= 5; ++second)
    svg += fmt::format("<text x='{:.0f}' y='{}' text-anchor='middle'>{} s</text>\n",
                       x_of(std::chrono::seconds{second}), 5 * row + 50, second);
  svg += "</g>\n</svg>\n";
  if (argc < 2) return svg.find("nan") == std::string::npos ? EXIT_SUCCESS : EXIT_FAILURE;
  std::ofstream file{argv[1]};
  file << svg;
  return file.good() ? EXIT_SUCCESS : EXIT_FAILURE;
}
