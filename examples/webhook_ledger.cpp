// SPDX-License-Identifier: MIT
//
// A webhook ledger. GitHub sends each delivery at least once; each must be entered in the ledger exactly
// once, and counted once in a running total, whatever happens to the workers, their connections, or the
// server's processes. What this program does about that is the first part below. The rest plays the world
// around it: a broker that repeats itself, worker processes that are killed, a network that drops the answer
// to COMMIT; and at the end it looks into the tables and counts.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <sys/prctl.h>
#include <nlohmann/json.hpp>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "webhook_ledger/broker.hpp"
#include "webhook_ledger/faults.hpp"
#include "webhook_ledger/naive.hpp"
#include "webhook_ledger/options.hpp"
#include "webhook_ledger/process.hpp"
#include "webhook_ledger/screen.hpp"
#include "webhook_ledger/tables.hpp"
#include "webhook_ledger/worker.hpp"

namespace webhook_ledger {

using namespace std::chrono_literals;

// ---- The part that uses idem ----

/// The message: one webhook delivery.
struct Delivery {
  std::string hook_id, delivery_id, event, body;
  int received = 1;  // how often the broker has handed it out
};

/// What makes a delivery the same event when it comes again, and what it says.
idem::Event event_of(const Delivery& d) {
  return {.id = idem::event_id(d.hook_id, d.delivery_id),  // two hooks may use the same delivery id
          .fingerprint = idem::fingerprint_bytes(d.body),
          .delivery_count = d.received};
}

/// The effect: an entry, and a running total. Never asks whether it has been here before.
void enter(pqxx::transaction_base& tx, const Delivery& d) {
  using idem::postgres::exec;
  exec(tx, "INSERT INTO ledger (hook_id, delivery_id, event, body) VALUES ($1, $2, $3, $4)",  //
       d.hook_id, d.delivery_id, d.event, d.body);
  const auto counted = exec(tx,
                            "UPDATE total SET deliveries = deliveries + 1, bytes = bytes + $1 "
                            "WHERE hook_id = $2 AND event = $3",
                            d.body.size(), d.hook_id, d.event);
  idem::postgres::require_rows(1, counted);
}

/// From a line of JSON; see "Input" below.
Delivery delivery_from(std::string_view line, int received);

/// A worker process: handles messages until the broker hangs up.
void work_with_idem(const Fd& broker, const Options& options) {
  idem::PostgresStore store{options.dsn, {.schema = "webhook_ledger", .max_connections = options.threads}};

  // A try that failed is repeated here, while we hold the message; after that the broker brings it again.
  constexpr auto here = idem::ExponentialBackoff{5ms, 100ms} | idem::FullJitter{} | idem::MaxAttempts{4};
  constexpr auto later = idem::Redeliver{idem::ExponentialBackoff{50ms, 1s} | idem::EqualJitter{}};
  const idem::ConsumerOptions patience{.wait_limit = 1s};  // for a copy that another worker has in hand

  const idem::IdempotentConsumer ledger{
      "webhook-ledger.v1",
      store,  //
      [](idem::postgres::Transaction& tx, const Delivery& d) { enter(tx, d); },
      here,
      later,
      patience};

  serve(broker, options.threads, [&](Message& message) {
    const auto outcome = ledger(delivery_from(message.text(), message.received()));

    if (outcome.status == idem::Status::duplicate) message.was_duplicate();
    if (outcome.resolved_in_doubt) message.resolved_a_doubt();
    switch (outcome.action) {
      case idem::Action::acknowledge: return message.acknowledge();
      case idem::Action::redeliver: return message.redeliver(outcome.redeliver_after);
      case idem::Action::dead_letter: return message.dead_letter(outcome.failure->message);
    }
  });
}

// ---- The same without it, as people write it: see naive.hpp ----

void work_naively(const Fd& broker, const Options& options) {
  const bool mark_first = options.worker_for == "mark_then_work";
  serve(broker, options.threads, [&](Message& message) {
    const Delivery d = delivery_from(message.text(), message.received());
    const std::string id = d.hook_id + ':' + d.delivery_id;
    const auto work = [&](pqxx::transaction_base& tx) { enter(tx, d); };
    const auto answer = mark_first ? naive::mark_then_work(options.dsn, id, work)  //
                                   : naive::work_then_mark(options.dsn, id, work);
    if (answer == naive::Answer::duplicate) message.was_duplicate();
    if (answer == naive::Answer::failed) return message.redeliver(50ms);
    message.acknowledge();
  });
}

// ---- Input ----

/// Throws: UsageError, without the line's number.
Delivery delivery_from(std::string_view line, int received) {
  const auto text = [](const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_string() || found->get_ref<const std::string&>().empty())
      throw UsageError{fmt::format("there is no text \"{}\"", name)};
    auto value = found->get<std::string>();
    if (value.find('\0') != std::string::npos)
      throw UsageError{fmt::format("\"{}\" holds a NUL character, which PostgreSQL text cannot", name)};
    return value;
  };
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) throw UsageError{"this is not JSON"};
  if (!json.is_object() || !json.contains("headers") || !json["headers"].is_object())
    throw UsageError{"there is no object \"headers\""};
  const auto& headers = json["headers"];
  return {text(headers, "X-GitHub-Hook-ID"), text(headers, "X-GitHub-Delivery"),
          text(headers, "X-GitHub-Event"), text(json, "body"), received};
}

struct Input {
  std::vector<std::string> lines = {};
  std::vector<Delivery> deliveries = {};  // the same, parsed
};

/// Throws: UsageError, if there is anything wrong with any line.
Input read_input(const std::string& path) {
  std::ifstream file{path};
  if (!file) throw UsageError{fmt::format("{} cannot be read", path)};
  Input input;
  std::map<std::string, std::pair<std::size_t, std::string>> seen;  // event id → line, body
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    try {
      if (line.size() > longest_text)
        throw UsageError{
            fmt::format("it is longer than the {} bytes this example's broker carries", longest_text)};
      const Delivery& d = input.deliveries.emplace_back(delivery_from(line, 1));
      const auto [first, is_new] = seen.try_emplace(event_of(d).id, number, d.body);
      if (!is_new && first->second.second != d.body)
        throw UsageError{
            fmt::format("line {} has the same hook and delivery id, and another body", first->second.first)};
    } catch (const UsageError& e) {
      throw UsageError{fmt::format("{}, line {}: {}", path, number, e.what())};
    }
    input.lines.push_back(line);
  }
  if (input.lines.empty())
    throw UsageError{fmt::format("{} is empty: it should hold one delivery a line", path)};
  return input;
}

// ---- One run under load, and what came of it ----

struct Result {
  std::string name;
  BrokerCounts broker = {};
  FaultCounts faults = {};
  Truth truth = {};
};

/// `consumer` is also the name of its schema.
Result run(std::string_view name, const std::string& consumer, const Input& input, const Options& options,
           Broker::Clock::time_point deadline) {
  const std::string worker_name = fmt::format("{}_worker_{}", consumer, ::getpid());
  Tables tables{consumer, worker_name};
  tables.create();
  tables.expect(input.deliveries);
  idem::PostgresStore{"", {.schema = consumer}}.create_schema();

  Result result{.name = std::string{name}};
  {
    const Interruptible interruptible;
    std::mt19937_64 random{options.seed};
    std::optional<Faults> faults;
    if (options.faults == Faulty::yes) faults.emplace(options.seed, input.lines.size());
    const std::string dsn = dsn_for(faults ? faults->where() : "", consumer, worker_name);
    Broker broker{input.lines,
                  {.worker_arguments = {"--worker-for", consumer, "--dsn", dsn, "--threads",
                                        std::to_string(options.threads)},
                   .workers = options.workers,
                   .in_hand = options.threads,
                   .deadline = deadline,
                   .on_dead_letter =
                       [&](const std::string& line, std::string_view reason) {
                         const Delivery d = delivery_from(line, 1);
                         tables.dead_letter(d.hook_id, d.delivery_id, reason);
                       }},
                  random};
    Progress progress{name};
    broker.run([&] {
      interruptible.check();
      if (faults) faults->meddle(broker, tables);
      progress.show(broker.counts());
    });
    result.broker = broker.counts();
    if (faults) result.faults = faults->counts();
  }
  result.truth = tables.truth();
  return result;
}

void print_result(const Result& result, std::size_t deliveries, Faulty faulty) {
  const auto& [name, broker, faults, truth] = result;
  fmt::print("\n{}\n", name);
  print_row("messages", broker.messages,
            fmt::format("broker: {} deliveries, each sent 1 to 4 times", deliveries));
  print_row("handed out", broker.handed_out, "broker: again when given back, or when the worker died");
  print_row("duplicates answered", broker.duplicates, "broker: acknowledged without a new effect");
  print_row("given back", broker.given_back, "broker: to be redelivered later");
  print_row("dead letters", broker.dead_letters, "broker: the table dead_letter says why");
  if (faulty == Faulty::yes) {
    print_row("workers killed", broker.workers_killed, "broker");
    print_row("connections cut", faults.connections_cut, "proxy: one by one");
    print_row("  answer to COMMIT dropped", faults.answers_dropped, "proxy");
    print_row("  COMMIT never arrived", faults.commits_swallowed, "proxy");
    print_row("backends terminated", faults.backends_terminated, "broker: by pg_terminate_backend");
    print_row("outages of the server", faults.outages,
              "broker: all connections cut, none to be had for 0.3 s");
    print_row("doubts resolved", broker.doubts_resolved, "broker: as workers told it that lived to tell");
  }
  print_row("distinct events", truth.events, "database");
  print_row("effects committed", truth.effects, "database: rows in the ledger");
  print_row("lost", truth.lost,
            fmt::format("database: events without a row; by the running totals {}", truth.totals_low));
  print_row("doubled", truth.doubled,
            fmt::format("database: rows too many; by the running totals {}", truth.totals_high));
}

void print_comparison(const std::vector<Result>& results) {
  fmt::print("\n  {:<28}{:>7}{:>9}\n", "the same load, handled by", "lost", "doubled");
  for (const auto& [name, broker, faults, truth] : results)
    fmt::print("  {:<28}{:>7}{:>9}\n", name, truth.lost, truth.doubled);
}

/// Whether the ledger is as it should be.
bool run_all(const Options& options) {
  const std::string path = options.input.empty() ? IDEM_EXAMPLE_DATA "/deliveries.jsonl" : options.input;
  const Input input = read_input(path);
  const auto deadline = Broker::Clock::now() + 60s;
  fmt::print("webhook_ledger: {} deliveries, {} workers of {} threads, --seed {}\n", input.lines.size(),
             options.workers, options.threads, options.seed);
  std::fflush(stdout);
  const Result with_idem = run("idem", "webhook_ledger", input, options, deadline);
  print_result(with_idem, input.lines.size(), options.faults);
  if (options.runs_naive()) {
    fmt::print("\n");
    std::vector<Result> results;
    results.push_back(run("mark, then work", "mark_then_work", input, options, deadline));
    results.push_back(run("work, then mark", "work_then_mark", input, options, deadline));
    results.push_back(with_idem);
    print_comparison(results);
  }
  const bool good = with_idem.truth.exactly_once();
  if (good)
    fmt::print("\nidem: nothing lost, nothing doubled.\n");
  else
    fmt::print("\nidem: NOT exactly once. Please report it, with --seed {} and the table above.\n",
               options.seed);
  return good;
}

}  // namespace webhook_ledger

int main(int argc, char** argv) {
  using namespace webhook_ledger;
  try {
    const Options options = parse_options(argc, argv);
    if (options.help) {
      fmt::print("{}", usage);
      return 0;
    }
    if (!options.worker_for.empty()) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // not to outlive a broker that was killed itself
      const Fd broker{broker_descriptor};
      options.worker_for == "webhook_ledger" ? work_with_idem(broker, options)
                                             : work_naively(broker, options);
      return 0;
    }
    std::signal(SIGPIPE, SIG_IGN);
    return run_all(options) ? 0 : 1;
  } catch (const Interrupted& interrupted) {
    std::signal(interrupted.signal, SIG_DFL);
    std::raise(interrupted.signal);
  } catch (const std::exception& e) {
    fmt::print(stderr, "webhook_ledger: {}\n", e.what());
  }
  return 2;
}
