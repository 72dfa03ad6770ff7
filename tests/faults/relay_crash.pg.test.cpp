// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "conformance/bench.hpp"
#include "postgres/relay_bench.hpp"
#include "support/catch.hpp"
#include "support/server.hpp"

using namespace std::chrono_literals;

namespace idem::tests::relaying {

namespace {

constexpr const char* schema_variable = "IDEM_TEST_RELAY_SCHEMA";
constexpr const char* job_variable = "IDEM_TEST_RELAY_JOB";
constexpr int messages_of_event = 3;
constexpr int keys_of_worker = 5;

/// Processes are killed, the server is not: it need not wait for its disk.
const std::string dsn = "options='-c synchronous_commit=off'";

/// A process of this program that does one job until it is killed.
class Child {
 public:
  Child(const std::string& schema, const std::string& job) {
    ::setenv(schema_variable, schema.c_str(), 1);
    ::setenv(job_variable, job.c_str(), 1);
    std::string self = "/proc/self/exe";
    std::string test = "[works until it is killed]";
    std::string out = "-o";
    std::string nowhere = "/dev/null";
    char* arguments[] = {self.data(), test.data(), out.data(), nowhere.data(), nullptr};
    const int error = ::posix_spawn(&pid_, self.c_str(), nullptr, nullptr, arguments, environ);
    ::unsetenv(schema_variable);
    ::unsetenv(job_variable);
    if (error != 0) throw std::runtime_error{"posix_spawn failed"};
  }
  Child(Child&& other) noexcept : pid_{std::exchange(other.pid_, 0)} {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child() {
    if (pid_ != 0) kill();
  }

  /// False: it had ended by itself, which none should.
  bool kill() {
    int status = 0;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = 0;
};

/// What was delivered: each arrival is committed by the publisher before it answers.
struct Deliveries {
  std::string table;

  void create() const {
    execute("CREATE TABLE " + table + " (n bigserial PRIMARY KEY, id text, key text, number bigint)");
  }
  void arrive(pqxx::connection& connection, const Outgoing& outgoing) const {
    pqxx::nontransaction session{connection};
    postgres::exec(session, "INSERT INTO " + table + " (id, key, number) VALUES ($1, $2, $3::bigint)",
                   outgoing.message.id, outgoing.message.key, outgoing.message.payload);
  }
  [[nodiscard]] long count() const { return std::stol(query_value("SELECT count(*) FROM " + table)); }
};

/// Handles its events one after another, each delivered twice, as one that died may have done before it.
[[noreturn]] void work(const std::string& schema, const std::string& name) {
  PostgresStore store{dsn, {.schema = schema}};
  const IdempotentConsumer pay{name, store, [&](postgres::Transaction& tx, const Payment& p) {
                                 for (int i = 0; i < messages_of_event; ++i) {
                                   const auto number = p.amount * messages_of_event + i;
                                   enqueue(tx, {.topic = "paid",
                                                .key = name + std::to_string(number % keys_of_worker),
                                                .payload = std::to_string(number)});
                                 }
                               }};
  const std::string done = "SELECT count(*) FROM " + schema + ".keys WHERE consumer = '" + name + "'";
  const std::string unsent = "SELECT count(*) FROM " + schema + ".outbox WHERE sent_at IS NULL";
  for (std::int64_t next = std::max(0L, std::stol(query_value(done)) - 1);; ++next) {
    for (int delivery = 0; delivery < 2; ++delivery)
      until([&] {
        return pay(Payment{.id = std::to_string(next), .amount = next}).action == Action::acknowledge;
      });
    if (next % 20 == 0) until([&] { return std::stol(query_value(unsent)) < 500; });
  }
}

[[noreturn]] void relay(const std::string& schema, postgres::detail::PublishMode mode) {
  const PostgresStore store{dsn, {.schema = schema}};
  const Deliveries deliveries{schema + ".deliveries"};
  pqxx::connection connection{dsn};
  const postgres::RelayOptions options{.batch = 20, .claim = 400ms, .poll = 20ms};
  postgres::OutboxRelay one{store, [&](const Outgoing& outgoing) { deliveries.arrive(connection, outgoing); },
                            at_once, options};
  postgres::OutboxRelay many{store,
                             [&](std::span<const Outgoing> batch) {
                               for (const Outgoing& outgoing : batch) deliveries.arrive(connection, outgoing);
                               return std::vector<Published>(batch.size(), Published::sent());
                             },
                             at_once, options};
  while (true) {
    if (mode == postgres::detail::PublishMode::one)
      one.run({});
    else
      many.run({});
  }
}

}  // namespace

TEST_CASE("works until it is killed", "[.][works until it is killed]") {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* schema = std::getenv(schema_variable);
  const char* job = std::getenv(job_variable);
  if (schema == nullptr || job == nullptr) return;
  if (std::string{job} == "relay one") relay(schema, postgres::detail::PublishMode::one);
  if (std::string{job} == "relay many") relay(schema, postgres::detail::PublishMode::batch);
  work(schema, job);
}

TEST_CASE("workers and relays are killed at any moment: everything arrives, by its id, each key in order") {
  const char* given = std::getenv("IDEM_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  CAPTURE(seed);
  const char* seconds = std::getenv("IDEM_TEST_SECONDS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{seconds ? std::stol(seconds) : 0};
  constexpr int least_kills = 25;

  Tables tables;
  const Deliveries deliveries{tables.schema + ".deliveries"};
  deliveries.create();
  const std::vector<std::string> jobs{"relay one", "relay many", "relay one", "worker.a", "worker.b"};
  std::vector<Child> children;
  for (const std::string& job : jobs) children.emplace_back(tables.schema, job);

  SplitMix64 random{seed};
  int kills = 0;
  for (; kills < least_kills || std::chrono::steady_clock::now() < end; ++kills) {
    const long goal = deliveries.count() + static_cast<long>(random() % 100);
    until([&] { return deliveries.count() >= goal; });
    const std::size_t victim = random() % jobs.size();
    CHECK(children[victim].kill());
    children[victim] = Child{tables.schema, jobs[victim]};
  }
  for (std::size_t i = 3; i < jobs.size(); ++i) CHECK(children[i].kill());
  until([&] {
    return query_value("SELECT count(*) FROM " + tables.schema + ".outbox WHERE sent_at IS NULL") == "0";
  });
  for (std::size_t i = 0; i < 3; ++i) CHECK(children[i].kill());

  const std::string keys = query_value("SELECT count(*) FROM " + tables.schema + ".keys");
  const std::string ids = query_value("SELECT count(DISTINCT id) FROM " + deliveries.table);
  std::cout << "relays killed: seed " << seed << " (repeat with IDEM_TEST_SEED), " << kills << " kills, "
            << keys << " events, " << ids << " messages, " << deliveries.count() << " arrivals\n";
  CHECK(std::stol(ids) == messages_of_event * std::stol(keys));
  INFO("no message arrives that is not in the outbox, and none of it is missing");
  CHECK(query_value("SELECT count(*) FROM " + tables.schema +
                    ".outbox o FULL JOIN (SELECT DISTINCT id FROM " + deliveries.table +
                    ") d ON d.id = o.id WHERE o.id IS NULL OR d.id IS NULL") == "0");
  INFO("the first arrivals of a key are in the order of its messages");
  CHECK(query_value(
            "SELECT count(*) FROM (SELECT number, lag(number) OVER (PARTITION BY key ORDER BY n) AS before "
            "FROM (SELECT DISTINCT ON (id) * FROM " +
            deliveries.table + " ORDER BY id, n) f) g WHERE before >= number") == "0");
  INFO("one id says one thing");
  CHECK(query_value("SELECT count(*) FROM (SELECT id FROM " + deliveries.table +
                    " GROUP BY id HAVING count(DISTINCT (key, number)) > 1) t") == "0");
}

}  // namespace idem::tests::relaying
