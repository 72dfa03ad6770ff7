// SPDX-License-Identifier: MIT
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "conformance/attempts.hpp"
#include "conformance/leasing.hpp"
#include "conformance/postgres_bench.hpp"
#include "support/catch.hpp"
#include "support/rerun.hpp"
#include "support/server.hpp"

using namespace std::chrono_literals;

namespace idem::tests {

namespace {

constexpr const char* schema_variable = "IDEM_TEST_CRASH_SCHEMA";
constexpr const char* moment_variable = "IDEM_TEST_CRASH_MOMENT";

void die() { ::kill(::getpid(), SIGKILL); }

/// Runs this program again, for the test case "dies", which kills itself at `moment`.
void crash_at(const std::string& moment, const std::string& schema) {
  ::setenv(schema_variable, schema.c_str(), 1);
  ::setenv(moment_variable, moment.c_str(), 1);
  run_again_until_killed("[dies]");
  ::unsetenv(schema_variable);
  ::unsetenv(moment_variable);
}

/// The world of several processes: a table, each deed in a transaction of its own.
struct Deeds {
  std::string table;

  void act(const Lease& lease) const {
    execute("INSERT INTO " + table + " VALUES (" + std::to_string(lease.token()) + ", '" +
            lease.idempotency_key() + "')");
  }
  [[nodiscard]] std::string count() const { return query_value("SELECT count(*) FROM " + table); }
};

[[nodiscard]] auto mailing(const Deeds& deeds) {
  return [deeds](Lease& lease, const Payment&) -> std::string {
    deeds.act(lease);
    return "receipt";
  };
}

constexpr ConsumerOptions brief{.lease = std::chrono::milliseconds{200}};
constexpr ConsumerOptions brief_and_counted{.lease = std::chrono::milliseconds{100},
                                            .attempts = Attempts::counted_by_store};

/// Delivers until nobody else is said to be at work.
template <class Consumer>
[[nodiscard]] auto deliver(const Consumer& consumer) {
  auto outcome = consumer(Payment{});
  until([&] {
    if (outcome.status == Status::in_progress) outcome = consumer(Payment{});
    return outcome.status != Status::in_progress;
  });
  return outcome;
}

struct CrashBench : PostgresBench {
  CrashBench() { execute("CREATE TABLE " + deeds.table + " (token bigint, idempotency_key text)"); }
  const Deeds deeds{schema + ".deeds"};
};

}  // namespace

TEST_CASE("dies", "[.][dies]") {
  const char* schema = std::getenv(schema_variable);
  const char* at = std::getenv(moment_variable);
  if (schema == nullptr || at == nullptr) return;
  const std::string moment = at;
  const Deeds deeds{std::string{schema} + ".deeds"};
  PostgresStore store{server_dsn(), {.schema = schema}};
  Watched<PostgresStore> watched{store};
  if (moment == "before completion") watched.before_complete = die;
  if (moment == "after completion") watched.after_complete = die;
  const IdempotentConsumer mail{"mail.v1", watched,
                                [&](Lease& lease, const Payment& p) -> std::string {
                                  auto receipt = mailing(deeds)(lease, p);
                                  if (moment == "in the handler") die();
                                  return receipt;
                                },
                                brief};
  const IdempotentConsumer counted_mail{"mail.v1", store,
                                        [&](Lease& lease, const Payment&) {
                                          deeds.act(lease);
                                          die();
                                        },
                                        brief_and_counted, each_second(3)};
  const IdempotentConsumer counted_pay{"pay.v1", store,
                                       [&](postgres::Transaction& tx, const Payment&) {
                                         postgres::exec(tx, "INSERT INTO " + deeds.table + " VALUES (0)");
                                         die();
                                       },
                                       brief_and_counted, each_second(3)};
  if (moment == "counted, outside") static_cast<void>(deliver(counted_mail));
  if (moment == "counted, in the store") static_cast<void>(deliver(counted_pay));
  static_cast<void>(deliver(mail));
}

TEST_CASE("a process killed before its effect is recorded is taken over when its lease ended") {
  const std::string moment = GENERATE("in the handler", "before completion");
  CAPTURE(moment);
  CrashBench bench;
  crash_at(moment, bench.schema);
  CHECK(bench.deeds.count() == "1");
  const IdempotentConsumer mail{"mail.v1", bench.store, mailing(bench.deeds), brief};
  check_outcome(deliver(mail), Status::applied, Action::acknowledge, 1);
  CHECK(bench.deeds.count() == "2");
  CHECK(query_value("SELECT count(DISTINCT token) || ' ' || count(DISTINCT idempotency_key) FROM " +
                    bench.deeds.table) == "2 1");
  CHECK(query_value("SELECT max(token) = (SELECT fence FROM " + bench.schema + ".keys) FROM " +
                    bench.deeds.table) == "t");
  check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
}

TEST_CASE("a process killed after its effect is recorded leaves a duplicate, with its value") {
  CrashBench bench;
  crash_at("after completion", bench.schema);
  const IdempotentConsumer mail{"mail.v1", bench.store, mailing(bench.deeds), brief};
  const auto outcome = mail(Payment{});
  check_outcome(outcome, Status::duplicate, Action::acknowledge, 0);
  CHECK(outcome.value == "receipt");
  CHECK(bench.deeds.count() == "1");
}

TEST_CASE("an event that kills its process again and again is rejected as crashed at Redeliver's limit") {
  const std::string moment = GENERATE("counted, outside", "counted, in the store");
  CAPTURE(moment);
  CrashBench bench;
  for (int i = 0; i < 3; ++i) crash_at(moment, bench.schema);
  const IdempotentConsumer mail{"mail.v1", bench.store,
                                [&](Lease& lease, const Payment&) { bench.deeds.act(lease); },
                                brief_and_counted, each_second(3)};
  int starts = 0;
  const IdempotentConsumer pay{"pay.v1", bench.store, paying(bench, starts), brief_and_counted,
                               each_second(3)};
  const auto outcome = moment == "counted, outside" ? deliver(mail) : deliver(pay);
  check_outcome(outcome, Status::rejected, Action::dead_letter, 0);
  CHECK(code_of(outcome) == code::crashed);
  CHECK(bench.deeds.count() == (moment == "counted, outside" ? "3" : "0"));
  CHECK(starts == 0);
  CHECK(query_value("SELECT concat_ws(' ', starts, failures, cardinality(open_starts)) FROM " + bench.schema +
                    ".attempts") == "3 0 3");
}

}  // namespace idem::tests
