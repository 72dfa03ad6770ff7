// SPDX-License-Identifier: MIT
#include <idem/metrics.hpp>

#include <chrono>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <idem/consumer.hpp>

#include "conformance/bench.hpp"
#include "conformance/memory_bench.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

namespace idem::tests::metering {

namespace {

using Tx = MemoryBench::Store::Transaction;

/// A clock that stands where it is put.
struct Wall {
  MetricsObserver::Time now{1'000'000s};
  [[nodiscard]] auto clock() {
    return [this] { return now; };
  }
};

/// The value of the sample that starts with `series`; "none" if there is no such one.
std::string value_of(const std::string& text, const std::string& series) {
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(series + ' ', 0) == 0) return line.substr(series.size() + 1);
  return "none";
}

struct Metered {
  Wall wall{};
  MetricsObserver metrics{wall.clock()};
  [[nodiscard]] std::string operator[](const std::string& series) const {
    return value_of(metrics.prometheus_text(), series);
  }
  void observe(const std::string& consumer, Observation seen) {
    const Key key{"acme", consumer, "e-1"};
    const Event event{.tenant = "acme", .id = "e-1"};
    metrics.observe({.what = seen.what,
                     .key = key,
                     .event = event,
                     .attempts = seen.attempts,
                     .failure = seen.failure,
                     .elapsed = seen.elapsed,
                     .status = seen.status,
                     .action = seen.action});
  }
  const Key any_key{"", "c", "e"};
  const Event any_event{};
  [[nodiscard]] Observation applied(Duration elapsed) const {
    return {.what = Observed::decided,
            .key = any_key,
            .event = any_event,
            .attempts = 1,
            .elapsed = elapsed,
            .status = Status::applied,
            .action = Action::acknowledge};
  }
};

}  // namespace

TEST_CASE("calls are counted by what they came to, attempts and retries beside them", "[metrics]") {
  MemoryBench bench;
  Metered seen;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               failing(bench, starts,
                                       [](int start) {
                                         if (start < 3) throw TransientError{"bank is down"};
                                         if (start == 4) throw PermanentError{"no such account"};
                                       }),
                               Immediate{} | MaxAttempts{3}, seen.metrics};
  CHECK(pay(Payment{}).status == Status::applied);
  CHECK(pay(Payment{}).status == Status::duplicate);
  CHECK(pay(Payment{.amount = 2}).status == Status::mismatch);
  CHECK(pay(Payment{.id = "p-2"}).status == Status::rejected);
  CHECK(pay.process({.id = "p-1", .delivery_count = 1}, Payment{}).status == Status::duplicate);

  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"pay.v1\"}"] == "5");
  const auto outcomes = [&](const std::string& status, const std::string& action) {
    return seen["idem_outcomes_total{consumer=\"pay.v1\",status=\"" + status + "\",action=\"" + action +
                "\"}"];
  };
  CHECK(outcomes("applied", "acknowledge") == "1");
  CHECK(outcomes("duplicate", "acknowledge") == "2");
  CHECK(outcomes("mismatch", "dead_letter") == "1");
  CHECK(outcomes("rejected", "dead_letter") == "1");
  CHECK(outcomes("deferred", "redeliver") == "0");
  CHECK(seen["idem_handler_starts_total{consumer=\"pay.v1\"}"] == "4");
  CHECK(seen["idem_retries_total{consumer=\"pay.v1\"}"] == "2");
  CHECK(seen["idem_attempt_failures_total{consumer=\"pay.v1\",kind=\"transient\"}"] == "2");
  CHECK(seen["idem_attempt_failures_total{consumer=\"pay.v1\",kind=\"permanent\"}"] == "1");
  CHECK(seen["idem_fingerprints_not_compared_total{consumer=\"pay.v1\"}"] == "1");
}

TEST_CASE("a commit in doubt, and its resolution, are counted", "[metrics]") {
  Metered seen;
  seen.observe("c", {.what = Observed::in_doubt, .key = seen.any_key, .event = seen.any_event});
  const Key key{"", "c", "e"};
  const Event event{};
  seen.metrics.observe({.what = Observed::decided, .key = key, .event = event, .resolved_in_doubt = true});
  CHECK(seen["idem_commits_in_doubt_total{consumer=\"c\"}"] == "1");
  CHECK(seen["idem_doubts_resolved_total{consumer=\"c\"}"] == "1");
}

TEST_CASE("a duration falls into the first bucket that holds it, and buckets add up", "[metrics]") {
  Metered seen;
  for (const Duration took : {Duration{0}, Duration{5ms}, Duration{5ms + 1ns}, Duration{10s}, Duration{11s}})
    seen.observe("c", seen.applied(took));
  const auto bucket = [&](const std::string& bound) {
    return seen["messaging_process_duration_seconds_bucket{consumer=\"c\",status=\"applied\",le=\"" + bound +
                "\"}"];
  };
  CHECK(bucket("0.005") == "2");
  CHECK(bucket("0.01") == "3");
  CHECK(bucket("7.5") == "3");
  CHECK(bucket("10") == "4");
  CHECK(bucket("+Inf") == "5");
  CHECK(seen["messaging_process_duration_seconds_count{consumer=\"c\",status=\"applied\"}"] == "5");
  CHECK(seen["messaging_process_duration_seconds_sum{consumer=\"c\",status=\"applied\"}"] == "21.010000001");
  CHECK(bucket("0.0075") == "none");
}

TEST_CASE("the age of a message counts when its effect is applied, and is never below zero", "[metrics]") {
  MemoryBench bench;
  Metered seen;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), seen.metrics};
  const auto deliver = [&](const std::string& id, Duration age) {
    const auto at = std::chrono::time_point_cast<MetricsObserver::Time::duration>(seen.wall.now - age);
    return pay.process({.id = id, .delivery_count = 1, .occurred_at = at}, Payment{}).status;
  };
  CHECK(deliver("a", 2min) == Status::applied);
  CHECK(deliver("a", 900h) == Status::duplicate);
  CHECK(deliver("b", -1h) == Status::applied);  // the clock of who sent it is ahead
  CHECK(pay.process({.id = "c", .delivery_count = 1}, Payment{}).status == Status::applied);
  CHECK(seen["idem_message_age_seconds_bucket{consumer=\"pay.v1\",le=\"1\"}"] == "1");
  CHECK(seen["idem_message_age_seconds_bucket{consumer=\"pay.v1\",le=\"60\"}"] == "1");
  CHECK(seen["idem_message_age_seconds_bucket{consumer=\"pay.v1\",le=\"300\"}"] == "2");
  CHECK(seen["idem_message_age_seconds_sum{consumer=\"pay.v1\"}"] == "120");
}

TEST_CASE("the time to recovery goes from the first failure to the next message applied", "[metrics]") {
  MemoryBench bench;
  Metered seen;
  int starts = 0;
  bool down = false;
  bool bad = false;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               failing(bench, starts,
                                       [&](int) {
                                         if (down) throw TransientError{"bank is down"};
                                         if (bad) throw PermanentError{"no such account"};
                                       }),
                               seen.metrics};
  const auto deliver = [&](const std::string& id, Duration later) {
    seen.wall.now += std::chrono::duration_cast<MetricsObserver::Time::duration>(later);
    return pay(Payment{.id = id}).status;
  };
  const std::string since = "idem_failing_since_timestamp_seconds{consumer=\"pay.v1\"}";
  const std::string last = "idem_last_applied_timestamp_seconds{consumer=\"pay.v1\"}";
  const std::string count = "idem_recovery_seconds_count{consumer=\"pay.v1\"}";
  CHECK(deliver("a", 0s) == Status::applied);
  CHECK(seen[since] == "0");
  CHECK(seen[last] == "1000000");
  down = true;
  CHECK(deliver("b", 10s) == Status::deferred);
  CHECK(deliver("b", 20s) == Status::deferred);
  CHECK(deliver("a", 30s) == Status::duplicate);  // starts no handler: says nothing of the bank
  CHECK(seen[since] == "1000010");
  CHECK(seen[last] == "1000000");
  CHECK(seen[count] == "0");
  down = false;
  CHECK(deliver("b", 40s) == Status::applied);
  CHECK(seen[since] == "0");
  CHECK(seen[last] == "1000100");
  CHECK(seen[count] == "1");
  CHECK(seen["idem_recovery_seconds_sum{consumer=\"pay.v1\"}"] == "90");
  bad = true;
  CHECK(deliver("c", 10s) == Status::rejected);  // the message's own fault
  CHECK(seen[since] == "0");
}

TEST_CASE("the text is what Prometheus reads: each family once, with its help and type, in one order",
          "[metrics]") {
  Metered seen;
  seen.observe("b", seen.applied(1ms));
  seen.observe("a", seen.applied(1ms));
  const std::string text = seen.metrics.prometheus_text();
  CHECK(text == seen.metrics.prometheus_text());
  CHECK(text.find("consumed_messages_total{consumer=\"a\"}") <
        text.find("consumed_messages_total{consumer=\"b\"}"));
  std::istringstream lines{text};
  std::set<std::string> families;
  std::string family;
  bool typed = false;
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    std::istringstream words{line};
    std::string first, second, name, kind;
    words >> first >> second >> name >> kind;
    if (first == "#" && second == "HELP") {
      CHECK(families.insert(name).second);
      family = name;
      typed = false;
    } else if (first == "#") {
      CHECK(second == "TYPE");
      CHECK(name == family);
      CHECK((kind == "counter" || kind == "gauge" || kind == "histogram"));
      typed = true;
    } else {
      CHECK(typed);
      CHECK(line.rfind(family, 0) == 0);
      CHECK(line.find(' ', line.rfind('}')) != std::string::npos);
    }
  }
  CHECK(families.size() >= 10);
  CHECK(text.back() == '\n');
}

TEST_CASE("before the first message there are families, and no samples", "[metrics]") {
  const std::string text = MetricsObserver{}.prometheus_text();
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) CHECK(line[0] == '#');
  CHECK(contains(text, "# TYPE idem_outcomes_total counter\n"));
}

TEST_CASE("a consumer's name is escaped", "[metrics]") {
  Metered seen;
  seen.observe("a\"b\\c\nd", seen.applied(1ms));
  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"a\\\"b\\\\c\\nd\"}"] == "1");
}

TEST_CASE("names made of data do not grow the metrics without end", "[metrics]") {
  Metered seen;
  for (int i = 0; i < 1'000; ++i) seen.observe("c-" + std::to_string(i), seen.applied(1ms));
  seen.observe("c-0", seen.applied(1ms));
  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"c-0\"}"] == "2");
  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"c-199\"}"] == "1");
  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"c-200\"}"] == "none");
  CHECK(seen["messaging_client_consumed_messages_total{consumer=\"(more)\"}"] == "800");
}

TEST_CASE("nothing of a message is in its metrics", "[metrics]") {
  MemoryBench bench;
  Metered seen;
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store,
                               failing(bench, starts, [](int) { throw TransientError{"secret-error"}; }),
                               seen.metrics};
  const Event event{.tenant = "secret-tenant",
                    .id = "secret-id",
                    .fingerprint = fingerprint_of("secret"),
                    .ordering_key = "secret-key",
                    .payload = "secret-payload",
                    .delivery_count = 1};
  CHECK(pay.process(event, Payment{}).status == Status::deferred);
  CHECK(seen["idem_handler_starts_total{consumer=\"pay.v1\"}"] == "1");
  CHECK_FALSE(contains(seen.metrics.prometheus_text(), "secret"));
}

TEST_CASE("many threads count into one observer while it is read, and nothing is lost", "[metrics]") {
  Metered seen;
  constexpr int each = 2'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < each; ++i) {
        seen.observe("c-" + std::to_string(i % 3), seen.applied(std::chrono::milliseconds{t}));
        if (i % 500 == 0) static_cast<void>(seen.metrics.prometheus_text());
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::int64_t sum = 0;
  for (const char* name : {"c-0", "c-1", "c-2"}) {
    const std::string consumer = std::string{"{consumer=\""} + name;
    const std::string total = seen["messaging_client_consumed_messages_total" + consumer + "\"}"];
    CHECK(total == seen["messaging_process_duration_seconds_count" + consumer + "\",status=\"applied\"}"]);
    sum += std::stoll(total);
  }
  CHECK(sum == 4 * each);
}

}  // namespace idem::tests::metering
