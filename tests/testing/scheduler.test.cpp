// SPDX-License-Identifier: MIT
#include <idem/testing/scheduler.hpp>

#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using idem::testing::Scheduler;

namespace {

std::string run(std::uint64_t seed) {
  Scheduler scheduler{seed};
  std::string done;
  for (const char c : {'a', 'b', 'c'})
    scheduler.add(
        std::string{c}, [&done, c] { return done.empty() || done.back() != c; }, [&done, c] { done += c; });
  while (done.size() < 12) scheduler.step();
  return done;
}

}  // namespace

TEST_CASE("one seed makes one run, the same on every compiler", "[testing]") {
  CHECK(run(1) == run(1));
  CHECK(run(1) == "bcbabcbcacac");
  CHECK(run(2) == "bcbcabcbacab");
}

TEST_CASE("each enabled step comes, and no other", "[testing]") {
  Scheduler scheduler{7};
  std::vector<int> counts(3);
  for (std::size_t i = 0; i < 3; ++i)
    scheduler.add(
        "s", [i] { return i != 1; }, [&counts, i] { ++counts[i]; });
  for (int i = 0; i < 1000; ++i) CHECK(scheduler.step());
  CHECK(counts[0] > 400);
  CHECK(counts[1] == 0);
  CHECK(counts[2] > 400);
}

TEST_CASE("without an enabled step nothing happens", "[testing]") {
  Scheduler scheduler{7};
  CHECK_FALSE(scheduler.step());
  scheduler.add(
      "never", [] { return false; }, [] {});
  CHECK_FALSE(scheduler.step());
  CHECK_THROWS_AS(scheduler.pick(0), std::invalid_argument);
}

TEST_CASE("no more than 64 steps are taken", "[testing]") {
  Scheduler scheduler{7};
  for (int i = 0; i < 64; ++i)
    scheduler.add(
        "s", [] { return true; }, [] {});
  CHECK_THROWS_AS(scheduler.add(
                      "s", [] { return true; }, [] {}),
                  std::length_error);
}

TEST_CASE("a step may let others happen while it is at work", "[testing]") {
  Scheduler scheduler{7};
  std::string done;
  bool at_work = false;
  scheduler.add(
      "outer", [&] { return !at_work; },
      [&] {
        at_work = true;
        done += '(';
        scheduler.step();
        done += ')';
        at_work = false;
      });
  scheduler.add(
      "inner", [&] { return at_work; }, [&] { done += 'x'; });
  CHECK(scheduler.step());
  CHECK(done == "(x)");
}

TEST_CASE("a story is told of one, with what concerns everybody, and costs nothing where it is dropped",
          "[testing]") {
  Scheduler kept{7};
  kept.tell("a", "a begins");
  kept.tell("b", [] { return std::string{"b begins"}; });
  kept.tell("", "time passes");
  CHECK(kept.story("a") == std::vector<std::string>{"a begins", "time passes"});
  CHECK(kept.story().size() == 3);
  Scheduler dropped{7, Scheduler::Story::dropped};
  bool made = false;
  dropped.tell("a", [&] {
    made = true;
    return std::string{};
  });
  CHECK_FALSE(made);
  CHECK(dropped.story().empty());
}
