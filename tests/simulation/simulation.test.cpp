// SPDX-License-Identifier: MIT
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "simulation/world.hpp"
#include "support/catch.hpp"

namespace idem::tests::simulation {

namespace {

using Story = testing::Scheduler::Story;

// A sanitizer makes a schedule many times as slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t schedules = 5'000;
#else
constexpr std::uint64_t schedules = 100'000;
#endif

[[nodiscard]] std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::stoull(text);
}

/// What went wrong with this seed, told from the beginning; empty: nothing.
[[nodiscard]] std::string failure_of(std::uint64_t seed, World::Crew& crew, Met& met) {
  World world{seed, Story::dropped, crew};
  world.run();
  met.add(world.met());
  if (!world.referee().blamed()) return {};
  World::Crew anew;
  World again{seed, Story::kept, anew};
  again.run();
  std::string told = "IDEM_TEST_SEED=" + std::to_string(seed) + ": " + again.referee().event() + ": " +
                     again.referee().what() + "\n";
  for (const std::string& line : again.story(again.referee().event())) told += line + "\n";
  return told;
}

}  // namespace

// IDEM_TEST_SCHEDULES: how many schedules; IDEM_TEST_SEED: the first one, and without a number the only one.
TEST_CASE("no schedule of crashes, lost answers, takeovers and redeliveries loses an effect or repeats one",
          "[simulation]") {
  const std::uint64_t only = number("IDEM_TEST_SEED", 0);
  const std::uint64_t first = only == 0 ? 1 : only;
  const std::uint64_t count = number("IDEM_TEST_SCHEDULES", only == 0 ? schedules : 1);
  World::Crew crew;
  Met met;
  std::string failed;
  for (std::uint64_t seed = first; seed < first + count && failed.empty(); ++seed)
    failed = failure_of(seed, crew, met);
  if (!failed.empty()) FAIL(failed);
  if (count < 1'000) return;
  // What is never met is not tested.
  CHECK(met.crashes > count / 10);
  CHECK(met.resolved > count / 10);
  CHECK(met.unresolved > count / 200);
  CHECK(met.rejected > count / 10);
  CHECK(met.duplicates > count / 10);
  CHECK(met.in_progress > count / 10);
  CHECK(met.takeovers > count / 10);
  CHECK(met.leases_lost > count / 200);
  CHECK(met.overlaps > count / 10);
}

TEST_CASE("one seed makes one run", "[simulation]") {
  World::Crew used;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World::Crew fresh;
    World one{seed, Story::kept, fresh};
    World two{seed, Story::kept, used};
    one.run();
    two.run();
    CHECK(one.story({}).size() > 20);
    CHECK(one.story({}) == two.story({}));
  }
}

}  // namespace idem::tests::simulation
