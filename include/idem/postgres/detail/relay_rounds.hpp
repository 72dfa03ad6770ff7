// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/detail/function_ref.hpp>
#include <idem/detail/letter_text.hpp>
#include <idem/duration.hpp>
#include <idem/error.hpp>
#include <idem/outbox.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/relay_breaker.hpp>
#include <idem/postgres/detail/relay_rows.hpp>
#include <idem/postgres/detail/relay_statements.hpp>
#include <idem/postgres/detail/upkeep.hpp>
#include <idem/postgres/relay_options.hpp>
#include <idem/postgres/store.hpp>
#include <idem/published.hpp>
#include <idem/retry/decision.hpp>
#include <idem/retry/sample.hpp>
#include <idem/runtime.hpp>

namespace idem::postgres::detail {

/// Whether what publishes takes messages one by one or many at once.
enum class PublishMode { one, batch };

/// The rounds of a relay: claim, publish, mark. What is the same for every publisher and policy.
class RelayRounds {
 public:
  /// Publishes, and lets out ConfigurationError only. nullopt: it failed for one of several, and is not known for
  /// which.
  using Publish = idem::detail::FunctionRef<std::optional<std::vector<Published>>(std::span<const Outgoing>)>;
  /// `redeliver` after a delay, or `stop`.
  using Decide = idem::detail::FunctionRef<RetryDecision(const RetryState&)>;

  RelayRounds(const PostgresStore& store, RelayOptions options, Runtime runtime)
      : options_{checked(std::move(options))},
        runtime_{idem::detail::with_defaults(std::move(runtime))},
        upkeep_{store},
        statements_{upkeep_},
        breaker_{options_.breaker} {}

  [[nodiscard]] const RelayOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Runtime& runtime() const noexcept { return runtime_; }
  [[nodiscard]] const Upkeep& upkeep() const noexcept { return upkeep_; }

  /// Notes what the last round left, claims, and publishes; what became of it is noted by the next round or
  /// `flush`.
  ///
  /// Throws: as Upkeep::ask; what it did not note is kept for the next call.
  RelayReport round(PublishMode mode, Publish publish, Decide decide, const std::stop_token& stop) {
    RelayReport report;
    if (const Duration pause = breaker_.pause_left(runtime_); pause > Duration{0}) {
      flush();
      report.broker_down = true;
      report.next_in = pause;
      return report;
    }
    auto asked = idem::detail::SteadyTime{runtime_.clock()};
    ClaimAnswer answer = claim();
    report.next_in = went_on(answer, asked);
    while (answer.messages.empty() && report.next_in == Duration{0} && !stop.stop_requested()) {
      asked = runtime_.clock();
      answer = claim();
      report.next_in = went_on(answer, asked);
    }
    report.claimed = answer.messages.size();
    const auto end = idem::detail::saturating_add(asked, options_.claim / 4 * 3);
    Work work{std::move(answer.messages), mode, publish, decide, stop, end};
    try {
      publish_all(work, report);
    } catch (...) {
      note_rest(work, report);
      throw;
    }
    note_rest(work, report);
    if (report.broker_down) {
      flush();
      report.next_in = breaker_.pause_left(runtime_);
    }
    return report;
  }

  /// Notes what became of the messages claimed last, and gives back those of a claim whose answer was lost.
  void flush() {
    if (marks_.empty() && !claiming_) return;
    std::string message = statements_.lock(RelayStatements::Lock::for_marks);
    if (held_) message += statements_.mark(marks_, *held_);
    if (claiming_) message += statements_.give_back(*claiming_);
    upkeep_.ask(message);
    marks_.clear();
    claiming_.reset();
  }

 private:
  struct Work {
    std::vector<ClaimedMessage> messages;  ///< the first `done` are noted
    PublishMode mode;
    Publish publish;
    Decide decide;
    const std::stop_token& stop;
    idem::detail::SteadyTime end;
    std::size_t done = 0;
    std::set<std::string, std::less<>> stuck = {};  ///< lanes one of whose messages failed
  };

  [[nodiscard]] ClaimAnswer claim() {
    if (!claiming_) claiming_ = random_token();
    std::string message = statements_.lock(RelayStatements::Lock::for_claim);
    if (held_) message += statements_.mark(marks_, *held_);
    message += statements_.claim({.token = *claiming_,
                                  .after = after_,
                                  .batch = breaker_.doubts() ? 1 : options_.batch,
                                  .per_key = options_.per_key,
                                  .length = options_.claim});
    ClaimAnswer answer = claim_answer(upkeep_.ask(message));
    marks_.clear();
    held_ = std::exchange(claiming_, std::nullopt);
    return answer;
  }

  [[nodiscard]] bool may_go_on(const Work& work, const RelayReport& report) const {
    return !report.broker_down && !work.stop.stop_requested() && runtime_.clock() < work.end;
  }

  void publish_all(Work& work, RelayReport& report) {
    while (work.done < work.messages.size() && may_go_on(work, report)) {
      const auto wave = next_wave(work, report);
      if (wave.empty()) continue;
      std::vector<Outgoing> outgoing;
      outgoing.reserve(wave.size());
      for (const std::size_t i : wave) outgoing.push_back(std::move(work.messages[i].outgoing));
      publish_wave(work, wave, outgoing, report);
    }
  }

  /// The next messages that may go at once: of one place in their lanes. Passes over lanes that are stuck.
  [[nodiscard]] std::vector<std::size_t> next_wave(Work& work, RelayReport& report) {
    std::vector<std::size_t> wave;
    const std::size_t most = work.mode == PublishMode::one || breaker_.doubts() ? 1 : work.messages.size();
    const std::size_t place = work.messages[work.done].place;
    while (work.done < work.messages.size() && wave.size() < most &&
           work.messages[work.done].place == place) {
      const ClaimedMessage& message = work.messages[work.done];
      if (work.stuck.count(message.lane) != 0)
        give_back(message, report);
      else
        wave.push_back(work.done);
      ++work.done;
    }
    return wave;
  }

  void publish_wave(Work& work, std::span<const std::size_t> wave, std::span<const Outgoing> outgoing,
                    RelayReport& report) {
    std::optional<std::vector<Published>> published;
    try {
      published = work.publish(outgoing);
    } catch (...) {
      for (const std::size_t i : wave) give_back(work.messages[i], report);
      throw;
    }
    if (!published) return publish_alone(work, wave, outgoing, report);
    for (std::size_t i = 0; i < wave.size(); ++i)
      note(work, work.messages[wave[i]], outgoing[i].attempts, (*published)[i], report);
  }

  void publish_alone(Work& work, std::span<const std::size_t> wave, std::span<const Outgoing> outgoing,
                     RelayReport& report) {
    for (std::size_t i = 0; i < wave.size(); ++i) {
      if (may_go_on(work, report))
        publish_wave(work, wave.subspan(i, 1), outgoing.subspan(i, 1), report);
      else
        give_back(work.messages[wave[i]], report);
    }
  }

  void note(Work& work, const ClaimedMessage& message, std::uint32_t attempts, const Published& published,
            RelayReport& report) {
    if (published.fate() != Published::Fate::sent) {
      work.stuck.insert(message.lane);
      report.error = error_text(published.why());
    }
    switch (published.fate()) {
      case Published::Fate::sent:
        ++report.sent;
        marks_.push_back({.seq = message.seq, .what = RelayMark::What::sent});
        break;
      case Published::Fate::broker_down:
        if (!report.broker_down) breaker_.broker_down(published.retry_after(), runtime_);
        report.broker_down = true;
        return give_back(message, report);
      case Published::Fate::dead: note_dead(message, report); break;
      case Published::Fate::failed: {
        const RetryDecision next =
            work.decide({.failures = std::uint64_t{attempts} + 1, .retry_after = published.retry_after()});
        if (next.verdict == RetryVerdict::stop) {
          note_dead(message, report);
          break;
        }
        ++report.failed;
        marks_.push_back({.seq = message.seq,
                          .what = RelayMark::What::failed,
                          .delay = sample(next.lo, next.hi, runtime_.engine),
                          .error = report.error});
      }
    }
    if (!report.broker_down) breaker_.answered();
  }

  void note_dead(const ClaimedMessage& message, RelayReport& report) {
    ++report.dead;
    marks_.push_back({.seq = message.seq, .what = RelayMark::What::dead, .error = report.error});
  }

  void give_back(const ClaimedMessage& message, RelayReport& report) {
    ++report.given_back;
    marks_.push_back({.seq = message.seq, .what = RelayMark::What::given_back});
  }

  void note_rest(Work& work, RelayReport& report) {
    for (; work.done < work.messages.size(); ++work.done) give_back(work.messages[work.done], report);
  }

  /// Where the next claim goes on, and when. A sweep goes over all lanes, with one claim or several; when it took
  /// nothing, there is time.
  [[nodiscard]] Duration went_on(const ClaimAnswer& answer, idem::detail::SteadyTime asked) {
    const idem::detail::SteadyTime now{runtime_.clock()};
    if (after_.empty()) sweep_ = {asked};
    sweep_.took_any = sweep_.took_any || !answer.messages.empty();
    sweep_.next = (std::min)(sweep_.next, idem::detail::saturating_add(now, answer.next_in));
    after_ = answer.ended ? std::string{} : answer.last_lane;
    if (!answer.ended || sweep_.took_any) return Duration{0};
    // No less than the sweep took, so that a server with very many lanes has a rest as well.
    const Duration least = (std::max<Duration>)(now - sweep_.began, std::chrono::milliseconds{1});
    return std::clamp<Duration>(sweep_.next - now, (std::min)(least, options_.poll), options_.poll);
  }

  [[nodiscard]] static std::string error_text(std::string_view why) {
    constexpr std::size_t most = 500;
    std::string text = idem::detail::storable(why.substr(0, why.find('\n')), most);
    return text.empty() ? "no reason was given" : text;
  }

  [[nodiscard]] static RelayOptions checked(RelayOptions options) {
    const auto refuse = [](std::string_view what) {
      throw ConfigurationError{fmt::format("RelayOptions::{}", what)};
    };
    if (options.batch < 1 || options.batch > 10'000) refuse("batch is not from 1 to 10,000");
    if (options.per_key < 1) refuse("per_key is 0: a claim takes at least one message of a key");
    if (options.claim < std::chrono::milliseconds{1}) refuse("claim is below a millisecond");
    if (options.poll < std::chrono::milliseconds{1}) refuse("poll is below a millisecond");
    if (options.breaker.first_pause <= Duration{0}) refuse("breaker.first_pause is not above zero");
    if (options.breaker.longest_pause < options.breaker.first_pause)
      refuse("breaker.longest_pause is shorter than the first");
    return options;
  }

  struct Sweep {
    idem::detail::SteadyTime began{};
    bool took_any = false;
    idem::detail::SteadyTime next = (idem::detail::SteadyTime::max)();
  };

  RelayOptions options_;
  Runtime runtime_;
  Upkeep upkeep_;
  RelayStatements statements_;
  RelayBreaker breaker_;
  std::optional<ClaimToken> held_ = {};      ///< of the messages claimed last
  std::vector<RelayMark> marks_ = {};        ///< what became of them, not noted yet
  std::optional<ClaimToken> claiming_ = {};  ///< of a claim that was sent, and not answered yet
  std::string after_ = {};
  Sweep sweep_ = {};
};

}  // namespace idem::postgres::detail
