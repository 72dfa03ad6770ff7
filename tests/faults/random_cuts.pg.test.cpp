// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "faults/ledger.hpp"

#include "support/catch.hpp"

namespace idem::tests::faults {

namespace {

/// What one event went through, as a line.
std::string line_of(const std::string& id, int delivery, const Outcome<>& outcome) {
  std::string line = id + " delivery " + std::to_string(delivery) + ": " +
                     std::string{to_string(outcome.status)} + ", " + std::string{to_string(outcome.action)} +
                     ", starts " + std::to_string(outcome.attempts);
  if (outcome.resolved_in_doubt) line += ", doubt resolved";
  if (outcome.failure) line += ", " + outcome.failure->code;
  return line;
}

struct Story {
  std::vector<std::string> lines;
  int wrong = 0;       ///< answers that the database contradicts
  int unfinished = 0;  ///< events that no delivery acknowledged
  int effects = 0;
  int distinct = 0;
  int doubts_resolved = 0;
  std::size_t cuts = 0;
};

/// One worker, `events` events, each delivered until it is acknowledged and once more, while the plan cuts.
Story run_under_random_cuts(std::uint64_t seed, int events) {
  const Ledger ledger;
  FaultProxy proxy{server_socket_dir()};
  PostgresStore store{proxy.dsn(), ledger.options(1)};
  const IdempotentConsumer pay{
      "pay.v1", store, ledger.book(), MaxAttempts{2},
      Runtime{.sleeper = [](auto, const std::stop_token&) {}, .engine = SplitMix64{seed}}};
  proxy.arm_plan({.seed = seed,
                  .before_server = 25,
                  .inside = 15,
                  .answer_unawaited = 25,
                  .answer = 25,
                  .inside_answer = 15,
                  .refuse = 30});
  Story story;
  for (int i = 0; i < events; ++i) {
    const std::string id = "e" + std::to_string(i);
    int acknowledged = 0;
    for (int delivery = 1; delivery <= 50 && acknowledged < 2; ++delivery) {
      const auto outcome = pay(Payment{id});
      story.lines.push_back(line_of(id, delivery, outcome));
      story.doubts_resolved += outcome.resolved_in_doubt ? 1 : 0;
      if (outcome.action == Action::dead_letter) ++story.wrong;
      if (outcome.action == Action::redeliver && acknowledged > 0 && outcome.attempts > 0) ++story.wrong;
      if (outcome.action != Action::acknowledge) continue;
      ++acknowledged;
      // The first acknowledgement may be a duplicate: of an effect whose doubt could not be resolved in time.
      if (acknowledged == 2 && outcome.status != Status::duplicate) ++story.wrong;
    }
    if (acknowledged == 0) ++story.unfinished;
  }
  story.cuts = proxy.fired();
  story.effects = std::stoi(query_value("SELECT count(*) FROM " + ledger.effects()));
  story.distinct = std::stoi(query_value("SELECT count(DISTINCT event) FROM " + ledger.effects()));
  return story;
}

std::uint64_t seed_of_this_run() {
  const char* given = std::getenv("IDEM_TEST_SEED");
  return given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 10);
}

}  // namespace

TEST_CASE("2,000 events under random cuts: nothing lost, nothing doubled, nothing acknowledged wrongly") {
  const std::uint64_t seed = seed_of_this_run();
  const Story story = run_under_random_cuts(seed, 2000);
  std::cout << "random cuts: seed " << seed << " (repeat with IDEM_TEST_SEED), " << story.cuts << " cuts, "
            << story.doubts_resolved << " doubts resolved\n";
  CAPTURE(seed, story.cuts, story.doubts_resolved);
  CHECK(story.wrong == 0);
  CHECK(story.unfinished == 0);
  CHECK(story.effects == 2000);
  CHECK(story.distinct == 2000);
  CHECK(story.cuts > 200);
  CHECK(story.doubts_resolved > 20);
}

TEST_CASE("the same seed tells the same story") {
  const std::uint64_t seed = seed_of_this_run();
  CAPTURE(seed);
  const Story first = run_under_random_cuts(seed, 200);
  const Story second = run_under_random_cuts(seed, 200);
  CHECK(first.lines == second.lines);
  CHECK(first.cuts == second.cuts);
  CHECK(run_under_random_cuts(seed + 1, 200).lines != first.lines);
}

}  // namespace idem::tests::faults
