// SPDX-License-Identifier: MIT
#include <idem/lease.hpp>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <vector>

#include <pqxx/pqxx>

#include <idem/postgres/schema.hpp>
#include <idem/postgres/store.hpp>

#include "conformance/attempts.hpp"
#include "conformance/leases.hpp"
#include "conformance/postgres_bench.hpp"
#include "conformance/takeovers.hpp"
#include "conformance/values.hpp"
#include "conformance/windows.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;
using namespace idem;
using namespace idem::tests;

namespace {

/// A bench on whose server time passes as it is told: what is stored moves into the past.
struct TimedPostgresBench : PostgresBench {
  using PostgresBench::PostgresBench;
  static constexpr int many = 1'000;

  [[nodiscard]] std::chrono::system_clock::time_point now() const { return std::chrono::system_clock::now(); }
  void advance(Duration span) const {
    const std::string by =
        std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(span).count()) +
        " * interval '1 microsecond'";
    execute("UPDATE " + schema + ".keys SET leased_until = leased_until - " + by +
            ", window_ends = window_ends - " + by + ", committed_at = committed_at - " + by);
  }
  void forget() const { execute("DELETE FROM " + schema + ".keys"); }

  /// Starts and failures of the one event that was counted, and how many starts have no end.
  [[nodiscard]] std::string counts() const {
    return query_value("SELECT concat_ws(' ', starts, failures, cardinality(open_starts)) FROM " + schema +
                       ".attempts");
  }
};

/// A role that may do exactly what schema_sql() says a worker needs.
class Worker {
 public:
  explicit Worker(const std::string& schema) : name_{unique_schema("idem_worker")} {
    execute("CREATE ROLE " + name_ + " LOGIN; GRANT USAGE ON SCHEMA " + schema + " TO " + name_ +
            "; GRANT SELECT, INSERT, UPDATE ON " + schema + ".keys TO " + name_ + "; GRANT SELECT ON " +
            schema + ".schema_info TO " + name_ + "; GRANT USAGE ON SEQUENCE " + schema + ".fences TO " +
            name_ + "; GRANT SELECT, INSERT, UPDATE ON " + schema + ".attempts TO " + name_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    try {
      execute("DROP OWNED BY " + name_ + "; DROP ROLE " + name_);
    } catch (const std::exception&) {
    }
  }
  [[nodiscard]] std::string dsn() const { return "user=" + name_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
};

/// Acquires, works, fails, is counted, is taken over, and is done, with what `store` is allowed.
void show_a_whole_life(TimedPostgresBench& bench, PostgresStore& store, const std::string& tenant) {
  int starts = 0;
  World world;
  const ConsumerOptions options{.lease = 60s, .window = 24h, .attempts = Attempts::counted_by_store};
  const IdempotentConsumer mail{"mail.v1", store,
                                [&](Lease& lease, const Payment& p) {
                                  lease.extend(60s);
                                  if (++starts == 1) throw TransientError{"down"};
                                  world.act(lease, p);
                                  return "receipt " + p.tenant;
                                },
                                options, each_second(3)};
  const Payment payment{.tenant = tenant};
  check_outcome(mail(payment), Status::deferred, Action::redeliver, 1);
  const Key key{tenant, "mail.v1", "p-1"};
  static_cast<void>(must_acquire(store, {.key = key}, 1s));
  check_outcome(mail(payment), Status::in_progress, Action::redeliver, 0);
  bench.advance(2s);
  check_outcome(mail(payment), Status::applied, Action::acknowledge, 1);
  const auto again = mail(payment);
  check_outcome(again, Status::duplicate, Action::acknowledge, 0);
  CHECK(again.value == "receipt " + tenant);
  check_outcome(mail(Payment{.amount = 2, .tenant = tenant}), Status::mismatch, Action::dead_letter, 0);
  bench.advance(25h);
  check_outcome(mail(payment), Status::applied, Action::acknowledge, 1);
  CHECK(world.count() == 2);
}

}  // namespace

TEST_CASE("a consumer on a PostgresStore: leases", "[lease]") {
  show_all(lease_behaviours<TimedPostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: takeovers", "[lease]") {
  show_all(takeover_behaviours<TimedPostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: windows", "[lease]") {
  show_all(window_behaviours<TimedPostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: counted attempts", "[lease]") {
  show_all(attempt_behaviours<TimedPostgresBench>());
}
TEST_CASE("a consumer on a PostgresStore: values of leases", "[lease]") {
  show_all(value_behaviours<TimedPostgresBench>());
}

TEST_CASE("a takeover that waits for the owner's completion finds a duplicate, not a free lease", "[lease]") {
  TimedPostgresBench bench;
  const Key key{"", "mail.v1", "p-1"};
  const Grant grant = must_acquire(bench.store, {.key = key}, 60s);
  bench.advance(61s);
  pqxx::connection connection{server_dsn()};
  std::optional<pqxx::work> owner{std::in_place, connection};
  owner->exec("UPDATE " + bench.schema + ".keys SET committed_at = clock_timestamp(), value = 'owner'");
  World world;
  const IdempotentConsumer mail{"mail.v1", bench.store, [&](Lease& lease, const Payment& p) -> std::string {
                                  world.act(lease, p);
                                  return "thief";
                                }};
  auto thief = std::async(std::launch::async, [&] { return mail(Payment{}); });
  bench.until_waited_for(bench.rival());
  SECTION("when the owner commits") {
    owner->commit();
    const auto outcome = thief.get();
    check_outcome(outcome, Status::duplicate, Action::acknowledge, 0);
    CHECK(outcome.value == "owner");
    CHECK(world.count() == 0);
    CHECK(is<Kept>(bench.store.complete({.key = key}, grant, "late")));
    CHECK(mail(Payment{}).value == "owner");
  }
  SECTION("and takes over when it does not") {
    owner.reset();
    check_outcome(thief.get(), Status::applied, Action::acknowledge, 1);
    CHECK(is<Lost>(bench.store.complete({.key = key}, grant, "late")));
    CHECK(mail(Payment{}).value == "thief");
  }
}

TEST_CASE("a completion that waits for a takeover is lost", "[lease]") {
  TimedPostgresBench bench;
  Owner<TimedPostgresBench> owner{bench};
  pqxx::connection connection{server_dsn()};
  pqxx::work successor{connection};
  successor.exec("UPDATE " + bench.schema +
                 ".keys SET claim_token = gen_random_uuid(), leased_until = clock_timestamp() + interval "
                 "'1 minute', fence = nextval('" +
                 bench.schema + ".fences')");
  auto late = std::async(std::launch::async, [&] { return owner.returns(); });
  bench.until_waited_for(bench.rival());
  successor.commit();
  const auto outcome = late.get();
  check_outcome(outcome, Status::in_progress, Action::redeliver, 1);
  CHECK(code_of(outcome) == code::lease_lost);
}

TEST_CASE("time zones of the worker, its session and the server move neither leases nor windows", "[lease]") {
  struct WorkerZone {
    explicit WorkerZone(const char* zone) {
      ::setenv("TZ", zone, 1);
      ::tzset();
    }
    ~WorkerZone() {
      ::unsetenv("TZ");
      ::tzset();
    }
  };
  for (const std::string zone : {"Asia/Tokyo", "America/Los_Angeles", "UTC"}) {
    CAPTURE(zone);
    const WorkerZone worker{zone.c_str()};
    TimedPostgresBench bench;
    PostgresStore store{
        "options='-c TimeZone=" + zone + " -c DateStyle=German -c IntervalStyle=sql_standard'",
        {.schema = bench.schema}};
    World world;
    const IdempotentConsumer mail{"mail.v1", store, acting(world), at_once(),
                                  ConsumerOptions{.lease = 60s, .window = 24h}};
    {
      Owner<TimedPostgresBench> owner{bench, {.lease = 60s, .heartbeat = false, .window = 24h}};
      const auto met = mail(Payment{});
      check_outcome(met, Status::in_progress, Action::redeliver, 0);
      CHECK(met.redeliver_after > 30s);
      CHECK(met.redeliver_after <= 60s);
      CHECK(owner.returns().status == Status::applied);
    }
    bench.advance(23h + 59min);
    check_outcome(mail(Payment{}), Status::duplicate, Action::acknowledge, 0);
    bench.advance(2min);
    check_outcome(mail.process(happened(bench.now() - 24h - 1min), Payment{}), Status::rejected,
                  Action::dead_letter, 0);
    check_outcome(mail.process(happened(bench.now() - 23h - 59min), Payment{}), Status::applied,
                  Action::acknowledge, 1);
  }
}

TEST_CASE("the session's isolation level and time-outs do not change what a lease means", "[lease]") {
  TimedPostgresBench bench;
  for (const std::string setting :
       {"default_transaction_isolation=serializable", "default_transaction_isolation=repeatable\\\\ read",
        "default_transaction_deferrable=on", "bytea_output=escape", "standard_conforming_strings=off",
        "client_encoding=LATIN1", "lock_timeout=1", "search_path=nowhere"}) {
    CAPTURE(setting);
    PostgresStore store{"options='-c " + setting + "'", {.schema = bench.schema}};
    bench.forget();
    execute("DELETE FROM " + bench.schema + ".attempts");
    show_a_whole_life(bench, store, "\xC3\xA9'\\");
  }
}

TEST_CASE("a role with what schema_sql() names can lease, count and be counted", "[lease]") {
  TimedPostgresBench bench;
  const Worker worker{bench.schema};
  PostgresStore store{worker.dsn(), {.schema = bench.schema}};
  CHECK_NOTHROW(store.check());
  show_a_whole_life(bench, store, "");
}

TEST_CASE("a missing right to lease or to count stops the worker, and the event is not started", "[lease]") {
  TimedPostgresBench bench;
  const Worker worker{bench.schema};
  PostgresStore store{worker.dsn(), {.schema = bench.schema}};
  World world;
  const IdempotentConsumer mail{"mail.v1", store, acting(world), counted};
  SECTION("the sequence") {
    execute("REVOKE USAGE ON SEQUENCE " + bench.schema + ".fences FROM " + worker.name());
    CHECK_THROWS_AS(static_cast<void>(mail(Payment{})), ConfigurationError);
    CHECK(bench.keys() == 0);
  }
  SECTION("the table of attempts: the event is free for a worker that may") {
    execute("REVOKE INSERT ON " + bench.schema + ".attempts FROM " + worker.name());
    CHECK_THROWS_AS(static_cast<void>(mail(Payment{})), ConfigurationError);
    const IdempotentConsumer able{"mail.v1", bench.store, acting(world)};
    CHECK(world.count() == 0);
    CHECK(able(Payment{}).status == Status::applied);
  }
  CHECK(world.count() <= 1);
}

TEST_CASE("row security keeps tenants apart in lease mode and in the counts", "[lease]") {
  TimedPostgresBench bench;
  const Worker worker{bench.schema};
  for (const std::string table : {"keys", "attempts"}) {
    const std::string name = bench.schema + "." + table;
    execute("ALTER TABLE " + name + " ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON " + name +
            " USING (tenant = current_setting('app.tenant'))");
  }
  PostgresStore store{worker.dsn(), {.schema = bench.schema, .tenant_setting = "app.tenant"}};
  for (const std::string tenant : {"a", "b", "o'c", "\\", "", "\xC3\xA9"}) {
    CAPTURE(tenant);
    show_a_whole_life(bench, store, tenant);
  }
  PostgresStore without{worker.dsn(), {.schema = bench.schema}};
  World world;
  const IdempotentConsumer mail{"mail.v1", without, acting(world)};
  CHECK_THROWS_AS(static_cast<void>(mail(Payment{.tenant = "a"})), ConfigurationError);
  CHECK(world.count() == 0);
}

TEST_CASE("a store with one connection leases, beats, counts and handles at once", "[lease]") {
  TimedPostgresBench bench;
  PostgresStore narrow{server_dsn(), {.schema = bench.schema, .max_connections = 1}};
  World world;
  const ConsumerOptions options{.wait_limit = 60s, .lease = 300ms, .attempts = Attempts::counted_by_store};
  const IdempotentConsumer mail{"mail.v1", narrow, acting(world), options, each_second(5)};
  const IdempotentConsumer pay{
      "pay.v1", narrow, [&](postgres::Transaction& tx, const Payment& p) { bench.write(tx, p.amount); },
      options, each_second(5)};
  std::vector<std::future<Outcome<>>> calls;
  for (int i = 0; i < 8; ++i)
    calls.push_back(std::async(std::launch::async, [&, i] {
      const Payment payment{.id = "p-" + std::to_string(i)};
      return i % 2 == 0 ? mail(payment) : pay(payment);
    }));
  for (auto& call : calls) check_outcome(call.get(), Status::applied, Action::acknowledge, 1);
  CHECK(world.count() == 4);
  CHECK(bench.sum() == 4);
}

TEST_CASE("failures, crashes and starts are counted apart", "[lease]") {
  TimedPostgresBench bench;
  World world;
  const IdempotentConsumer failing_one{"mail.v1", bench.store,
                                       [](Lease&, const Payment&) { throw TransientError{"down"}; }, counted};
  const Key key{"", "mail.v1", "p-1"};
  CHECK(failing_one(Payment{}).status == Status::deferred);
  CHECK(failing_one(Payment{}).status == Status::deferred);
  CHECK(bench.counts() == "2 2 0");
  static_cast<void>(bench.store.start({.key = key}));
  CHECK(bench.counts() == "3 2 1");
  CHECK(failing_one(Payment{}).status == Status::deferred);
  CHECK(bench.counts() == "4 3 1");
  const IdempotentConsumer limited{"mail.v1", bench.store, acting(world), counted, each_second(4)};
  CHECK(code_of(limited(Payment{})) == code::crashed);
  CHECK(bench.counts() == "4 3 1");
}

TEST_CASE("a worker that only ever crashes leaves a row that does not grow", "[lease]") {
  TimedPostgresBench bench;
  const Key key{"", "mail.v1", "p-1"};
  for (int i = 0; i < 40; ++i) static_cast<void>(bench.store.start({.key = key}));
  CHECK(bench.counts() == "40 0 16");
}

TEST_CASE("a start that is sent again is counted once", "[lease]") {
  TimedPostgresBench bench;
  const postgres::detail::Statements statements{{.schema = bench.schema}};
  const Key key{"", "mail.v1", "p-1"};
  const ClaimToken one = postgres::detail::random_token();
  const ClaimToken other = postgres::detail::random_token();
  execute(statements.start({.key = key}, one));
  execute(statements.start({.key = key}, one));
  CHECK(bench.counts() == "1 0 1");
  execute(statements.start({.key = key}, other));
  execute(statements.start({.key = key}, one));
  CHECK(bench.counts() == "2 0 2");
  execute(statements.end({.key = key}, {.token = one}, StartEnd::not_counted));
  execute(statements.end({.key = key}, {.token = one}, StartEnd::not_counted));
  CHECK(bench.counts() == "1 0 1");
  execute(statements.end({.key = key}, {.token = other}, StartEnd::failed));
  execute(statements.end({.key = key}, {.token = other}, StartEnd::failed));
  CHECK(bench.counts() == "1 1 0");
}

TEST_CASE("a row that another session locks is waited for as long as the call may wait, and no longer",
          "[lease]") {
  TimedPostgresBench bench;
  const Key key{"", "c", "e"};
  const Claim claim{.key = key, .wait_limit = 20ms};
  const Grant grant = must_acquire(bench.store, claim, 60s);
  const Start start = std::get<Start>(bench.store.start(claim));
  pqxx::connection connection{server_dsn()};
  pqxx::work lock{connection};
  lock.exec("SELECT 1 FROM " + bench.schema + ".keys, " + bench.schema + ".attempts FOR UPDATE");
  CHECK(is<Failed>(bench.store.extend(claim, grant, 1h)));
  CHECK(is<Failed>(bench.store.complete(claim, grant, {})));
  CHECK(is<Failed>(bench.store.release(claim, grant)));
  CHECK(is<Failed>(bench.store.start(claim)));
  CHECK(is<Failed>(bench.store.end(claim, start, StartEnd::failed)));
  const Acquired met = bench.store.acquire(claim, 60s);
  REQUIRE(is<Leased>(met));
}
