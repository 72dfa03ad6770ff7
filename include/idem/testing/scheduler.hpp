// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <idem/retry/sample.hpp>

namespace idem::testing {

/// Decides, from one seed, everything that a simulation leaves open: which of several steps comes next, and what
/// goes wrong. The same seed makes the same run, on every compiler.
///
/// Thread safety: one thread. A step may call `step` itself: then another one happens while it is at work.
class Scheduler {
 public:
  /// A story costs time: run with `dropped`, and a seed that failed once more with `kept`.
  enum class Story { kept, dropped };

  explicit Scheduler(std::uint64_t seed, Story story = Story::kept)
      : seed_{seed}, engine_{seed}, story_is_{story} {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  /// 64 random bits.
  [[nodiscard]] std::uint64_t draw() noexcept { return engine_(); }

  /// One of 0 … `choices` - 1.
  ///
  /// Throws: std::invalid_argument — there is no choice.
  [[nodiscard]] std::size_t pick(std::size_t choices) {
    if (choices == 0) throw std::invalid_argument{"Scheduler::pick: there is nothing to pick from"};
    return static_cast<std::size_t>(detail::multiply(engine_(), choices).high);
  }

  /// True that often in a hundred times.
  [[nodiscard]] bool chance(std::uint32_t percent) { return pick(100) < percent; }

  /// Adds a step to choose from; not while one runs.
  ///
  /// Throws: std::length_error — there are 64 already.
  void add(std::string name, std::function<bool()> enabled, std::function<void()> run) {
    if (steps_.size() == most)
      throw std::length_error{"Scheduler::add: there are 64 steps, and no more can be"};
    steps_.push_back({std::move(name), std::move(enabled), std::move(run)});
  }

  /// Runs one of the steps that are enabled. False: there was none.
  bool step() {
    std::uint64_t enabled = 0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].enabled()) {
        enabled |= std::uint64_t{1} << i;
        ++count;
      }
    if (count == 0) return false;
    std::size_t skip = pick(count);
    for (std::size_t i = 0;; ++i)
      if ((enabled >> i & 1U) != 0 && skip-- == 0) {
        tell({}, [&] { return steps_[i].name; });
        steps_[i].run();
        return true;
      }
  }

  /// Keeps a line of the story. `subject`: whom it is about; empty: everybody. `line`: a text, or what makes one,
  /// called only if the story is kept.
  template <class Line>
  void tell(std::string_view subject, const Line& line) {
    if (story_is_ == Story::dropped) return;
    if constexpr (std::is_invocable_v<const Line&>)
      story_.push_back({std::string{subject}, line()});
    else
      story_.push_back({std::string{subject}, std::string{line}});
  }

  /// What was told of `subject` and of everybody, in order; of all, if it is empty.
  [[nodiscard]] std::vector<std::string> story(std::string_view subject = {}) const {
    std::vector<std::string> lines;
    for (const auto& [whom, line] : story_)
      if ((subject.empty() || whom.empty() || whom == subject) && !line.empty()) lines.push_back(line);
    return lines;
  }

 private:
  static constexpr std::size_t most = 64;

  struct Step {
    std::string name;
    std::function<bool()> enabled;
    std::function<void()> run;
  };

  std::uint64_t seed_;
  SplitMix64 engine_;
  Story story_is_;
  std::vector<Step> steps_ = {};
  std::vector<std::pair<std::string, std::string>> story_ = {};
};

}  // namespace idem::testing
