// SPDX-License-Identifier: MIT
#include "support/fault_proxy.hpp"

#include "support/catch.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <libpq-fe.h>
#include <poll.h>
#include <sys/socket.h>

#include <pqxx/pqxx>

#include "support/server.hpp"

namespace {

using namespace idem::tests;
using namespace std::chrono_literals;

enum class End { committed, failed };

/// A table `t (id, value)` in a schema of its own.
class Table {
 public:
  Table() : schema_{unique_schema("fault_proxy")} {
    execute("CREATE SCHEMA " + schema_);
    execute("CREATE TABLE " + name() + " (id int PRIMARY KEY, value text)");
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() { drop_schema(schema_); }

  [[nodiscard]] std::string name() const { return schema_ + ".t"; }
  [[nodiscard]] std::string rows() const { return query_value("SELECT count(*) FROM " + name()); }

  /// Lets the COMMIT of a row with this value do some SQL first.
  void at_commit_of(const std::string& value, const std::string& sql) const {
    execute("CREATE FUNCTION " + schema_ + ".act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM " +
            sql + "; RETURN NULL; END $$");
    execute("CREATE CONSTRAINT TRIGGER act AFTER INSERT ON " + name() +
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.value = '" + value +
            "') EXECUTE FUNCTION " + schema_ + ".act()");
  }

  /// One transaction of three exchanges on a new connection.
  [[nodiscard]] End insert(const std::string& dsn, int id, const std::string& value = "") const {
    try {
      pqxx::connection connection{dsn};
      pqxx::work work{connection};
      work.exec("INSERT INTO " + name() + " VALUES (" + std::to_string(id) + ", '" + value +
                "') ON CONFLICT (id) DO NOTHING");
      work.commit();
      return End::committed;
    } catch (const std::exception&) {
      return End::failed;
    }
  }

 private:
  std::string schema_;
};

using PgConnection = std::unique_ptr<PGconn, decltype(&PQfinish)>;
using PgResult = std::unique_ptr<PGresult, decltype(&PQclear)>;

[[nodiscard]] PgConnection connect(const std::string& dsn) {
  PgConnection connection{PQconnectdb(dsn.c_str()), &PQfinish};
  REQUIRE(PQstatus(connection.get()) == CONNECTION_OK);
  return connection;
}

[[nodiscard]] std::vector<std::string> log_without_numbers(const FaultProxy& proxy) {
  std::vector<std::string> lines = proxy.log();
  for (std::string& line : lines) line.erase(0, line.find(' ') + 1);
  return lines;
}

[[nodiscard]] PgResult run_params(const PgConnection& connection, const char* sql, const char* parameter) {
  return {PQexecParams(connection.get(), sql, 1, nullptr, &parameter, nullptr, nullptr, 0), &PQclear};
}

}  // namespace

TEST_CASE("a plain transaction with one statement is three round trips on one connection") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  pqxx::connection connection{proxy.dsn()};
  CHECK(proxy.connections() == 1);
  proxy.reset_counts();
  pqxx::work work{connection};
  work.exec("INSERT INTO " + table.name() + " VALUES (1, '')");
  work.commit();
  CHECK(proxy.round_trips() == 3);
  CHECK(proxy.connections() == 0);
  CHECK(proxy.fired() == 0);
  CHECK(table.rows() == "1");
}

TEST_CASE("starting a connection is not a round trip") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  CHECK(proxy.connections() == 1);
  CHECK(proxy.round_trips() == 0);
}

TEST_CASE("a parameterised statement is one round trip, and its parameter is not logged") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  const PgResult result = run_params(connection, "SELECT $1::text", "secret");
  CHECK(std::string_view{PQgetvalue(result.get(), 0, 0)} == "secret");
  CHECK(proxy.round_trips() == 1);
  CHECK(proxy.log() == std::vector<std::string>{"1: connect", "1: SELECT"});
}

TEST_CASE("an answer of many megabytes and a statement of many megabytes pass unchanged") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  const std::string text(5'000'000, 'x');
  const PgResult result = run_params(connection, "SELECT $1::text || $1::text", text.c_str());
  CHECK(PQgetvalue(result.get(), 0, 0) == text + text);
  CHECK(proxy.round_trips() == 1);
}

TEST_CASE("COPY passes, and is one round trip") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  PgResult{PQexec(connection.get(), ("COPY " + table.name() + " FROM STDIN").c_str()), &PQclear};
  REQUIRE(PQputCopyData(connection.get(), "1\tone\n2\ttwo\n", 12) == 1);
  REQUIRE(PQputCopyEnd(connection.get(), nullptr) == 1);
  while (const PgResult result{PQgetResult(connection.get()), &PQclear}) {
    CHECK(PQresultStatus(result.get()) == PGRES_COMMAND_OK);
  }
  CHECK(proxy.round_trips() == 1);
  CHECK(table.rows() == "2");
}

TEST_CASE("a COMMIT cut before the server is never executed") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::before_server, .word = "COMMIT"});
  CHECK(table.insert(proxy.dsn(), 1, "first") == End::failed);
  CHECK(proxy.fired() == 1);
  // Waits for the first transaction's end, and finds no row of it.
  CHECK(table.insert(proxy.dsn(), 1, "second") == End::committed);
  CHECK(query_value("SELECT value FROM " + table.name()) == "second");
}

TEST_CASE("a COMMIT whose answer is swallowed is finished before the client hears of the loss") {
  const Table table;
  // Long enough for a proxy that does not await the answer to be found out.
  table.at_commit_of("slow", "count(*) FROM generate_series(1, 1000000)");
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer, .word = "COMMIT"});
  CHECK(table.insert(proxy.dsn(), 1, "slow") == End::failed);
  CHECK(table.rows() == "1");
  CHECK(proxy.fired() == 1);
  CHECK(proxy.round_trips() == 2);
  CHECK(log_without_numbers(proxy) ==
        std::vector<std::string>{"connect", "BEGIN", "INSERT", "COMMIT -> answer"});
}

TEST_CASE("with answer_unawaited the client loses its connection while the server still runs the COMMIT") {
  const Table table;
  const std::string lock = "lock(hashtext('" + table.name() + "'))";
  table.at_commit_of("first", "pg_advisory_xact_" + lock);
  pqxx::connection holder{server_dsn()};
  pqxx::nontransaction session{holder};
  session.exec("SELECT pg_advisory_" + lock);

  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer_unawaited, .word = "COMMIT"});
  CHECK(table.insert(proxy.dsn(), 1, "first") == End::failed);
  CHECK(proxy.fired() == 1);
  CHECK(table.rows() == "0");

  session.exec("SELECT pg_advisory_un" + lock);
  CHECK(table.insert(server_dsn(), 1, "second") == End::committed);
  CHECK(query_value("SELECT value FROM " + table.name()) == "first");
}

TEST_CASE("a COMMIT cut inside, at whichever byte, is not executed") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  const std::size_t whole = sizeof "COMMIT" + 5;
  for (std::size_t bytes = 0; bytes <= whole; ++bytes) {
    proxy.arm({.cut = Cut::inside, .word = "COMMIT", .bytes = bytes});
    CHECK(table.insert(proxy.dsn(), 1) == End::failed);
  }
  CHECK(proxy.fired() == whole + 1);
  CHECK(table.insert(server_dsn(), 1, "only") == End::committed);
  CHECK(query_value("SELECT value FROM " + table.name()) == "only");
}

TEST_CASE("a COMMIT's answer cut inside, at whichever byte, leaves the row and does not tell the client") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  const std::size_t whole = (sizeof "COMMIT" + 5) + 6;
  for (std::size_t bytes = 0; bytes <= whole; ++bytes) {
    CAPTURE(bytes);
    proxy.arm({.cut = Cut::inside_answer, .word = "COMMIT", .bytes = bytes});
    CHECK(table.insert(proxy.dsn(), static_cast<int>(bytes)) == End::failed);
    CHECK(table.rows() == std::to_string(bytes + 1));
  }
  CHECK(proxy.fired() == whole + 1);
}

TEST_CASE("a hung answer keeps the client waiting, the work done, until it is released") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::hang_answer, .word = "COMMIT"});
  auto client = std::async(std::launch::async, [&] { return table.insert(proxy.dsn(), 1); });
  proxy.wait_fired(1);
  CHECK(table.rows() == "1");
  CHECK(client.wait_for(0s) == std::future_status::timeout);
  CHECK(proxy.round_trips() == 2);
  proxy.release();
  CHECK(client.get() == End::committed);
  CHECK(proxy.round_trips() == 3);
}

TEST_CASE("a hung request reaches the server only when it is released") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::hang_request, .word = "COMMIT"});
  auto client = std::async(std::launch::async, [&] { return table.insert(proxy.dsn(), 1); });
  proxy.wait_fired(1);
  CHECK(table.rows() == "0");
  proxy.release();
  CHECK(client.get() == End::committed);
  CHECK(table.rows() == "1");
}

TEST_CASE("a hung client can be cut as well") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::hang_answer, .word = "INSERT"});
  auto client = std::async(std::launch::async, [&] { return table.insert(proxy.dsn(), 1); });
  proxy.wait_fired(1);
  proxy.cut_all();
  CHECK(client.get() == End::failed);
}

TEST_CASE("the proxy's end frees a hung client") {
  const Table table;
  auto proxy = std::make_unique<FaultProxy>(server_socket_dir());
  proxy->arm({.cut = Cut::hang_answer, .word = "INSERT"});
  auto client = std::async(std::launch::async, [&, dsn = proxy->dsn()] { return table.insert(dsn, 1); });
  proxy->wait_fired(1);
  proxy.reset();
  CHECK(client.get() == End::failed);
}

TEST_CASE("the nth exchange is counted from arming, over all connections") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  CHECK(table.insert(proxy.dsn(), 1) == End::committed);
  proxy.arm({.cut = Cut::before_server, .nth = 5});
  CHECK(table.insert(proxy.dsn(), 2) == End::committed);
  CHECK(table.insert(proxy.dsn(), 3) == End::failed);
  CHECK(proxy.log().back() == "3: INSERT -> before_server");
}

TEST_CASE("the nth exchange that has a word is counted apart from the others") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer, .word = "INSERT", .nth = 2});
  CHECK(table.insert(proxy.dsn(), 1) == End::committed);
  CHECK(table.insert(proxy.dsn(), 2) == End::failed);
  CHECK(proxy.log().back() == "2: INSERT -> answer");
}

TEST_CASE("armed faults fire one after the other, each once, and then everything works again") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer, .word = "COMMIT"});
  proxy.arm({.cut = Cut::before_server});
  CHECK(table.insert(proxy.dsn(), 1) == End::failed);
  CHECK(table.insert(proxy.dsn(), 2) == End::failed);
  CHECK(table.insert(proxy.dsn(), 3) == End::committed);
  CHECK(proxy.fired() == 2);
  CHECK(query_value("SELECT string_agg(id::text, ' ' ORDER BY id) FROM " + table.name()) == "1 3");
}

TEST_CASE("a disarmed fault does not fire") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer});
  proxy.arm_plan({.seed = 1, .answer = 1000});
  proxy.disarm();
  CHECK(table.insert(proxy.dsn(), 1) == End::committed);
  CHECK(proxy.fired() == 0);
}

TEST_CASE(
    "a fault takes the whole of a parameterised statement, found by the text it was parsed or prepared "
    "with") {
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::before_server, .word = "upper"});
  const PgConnection first = connect(proxy.dsn());
  CHECK(PQresultStatus(run_params(first, "SELECT upper($1)", "a").get()) == PGRES_FATAL_ERROR);
  CHECK(PQstatus(first.get()) == CONNECTION_BAD);

  const PgConnection second = connect(proxy.dsn());
  proxy.arm({.cut = Cut::answer, .word = "lower"});
  const PgResult prepared{PQprepare(second.get(), "s", "SELECT lower($1)", 1, nullptr), &PQclear};
  CHECK(PQresultStatus(prepared.get()) == PGRES_COMMAND_OK);
  const char* parameter = "A";
  const PgResult executed{PQexecPrepared(second.get(), "s", 1, &parameter, nullptr, nullptr, 0), &PQclear};
  CHECK(PQresultStatus(executed.get()) == PGRES_FATAL_ERROR);
  CHECK(PQstatus(second.get()) == CONNECTION_BAD);
  CHECK(proxy.fired() == 2);
}

TEST_CASE("new connections are refused as long as the test says so") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  proxy.refuse_connections(Refuse::yes);
  CHECK(table.insert(proxy.dsn(), 1) == End::failed);
  CHECK(proxy.connections() == 0);
  CHECK(proxy.log().back() == "1: refused");
  proxy.refuse_connections(Refuse::no);
  CHECK(table.insert(proxy.dsn(), 1) == End::committed);
}

TEST_CASE("cutting all ends every open connection, and no later one") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection one = connect(proxy.dsn());
  const PgConnection two = connect(proxy.dsn());
  proxy.cut_all();
  for (const auto* connection : {&one, &two}) {
    const PgResult result{PQexec(connection->get(), "SELECT 1"), &PQclear};
    CHECK(PQresultStatus(result.get()) == PGRES_FATAL_ERROR);
    CHECK(PQstatus(connection->get()) == CONNECTION_BAD);
  }
  const PgConnection three = connect(proxy.dsn());
  const PgResult result{PQexec(three.get(), "SELECT 1"), &PQclear};
  CHECK(PQresultStatus(result.get()) == PGRES_TUPLES_OK);
}

TEST_CASE("the last words of a terminated backend reach its client") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  // Not PQexec, which answers with the last thing it met: that the connection is lost.
  REQUIRE(PQsendQuery(connection.get(), "SELECT pg_terminate_backend(pg_backend_pid())") == 1);
  const PgResult result{PQgetResult(connection.get()), &PQclear};
  REQUIRE(PQresultErrorField(result.get(), PG_DIAG_SQLSTATE) != nullptr);
  CHECK(std::string_view{PQresultErrorField(result.get(), PG_DIAG_SQLSTATE)} == "57P01");
}

TEST_CASE("a fault that awaits an answer fires when the backend dies instead") {
  FaultProxy proxy{server_socket_dir()};
  proxy.arm({.cut = Cut::answer, .word = "pg_terminate_backend"});
  const PgConnection connection = connect(proxy.dsn());
  REQUIRE(PQsendQuery(connection.get(), "SELECT pg_terminate_backend(pg_backend_pid())") == 1);
  const PgResult result{PQgetResult(connection.get()), &PQclear};
  CHECK(PQresultErrorField(result.get(), PG_DIAG_SQLSTATE) == nullptr);
  proxy.wait_fired(1);
}

TEST_CASE("a cancel request passes") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  const std::unique_ptr<PGcancel, decltype(&PQfreeCancel)> cancel{PQgetCancel(connection.get()),
                                                                  &PQfreeCancel};
  REQUIRE(PQsendQuery(connection.get(), "SELECT pg_sleep(3600)") == 1);
  // Again and again: a request that comes before the statement has begun is forgotten.
  while (PQisBusy(connection.get()) != 0) {
    char error[256];
    REQUIRE(PQcancel(cancel.get(), error, sizeof error) == 1);
    pollfd socket{PQsocket(connection.get()), POLLIN, 0};
    if (::poll(&socket, 1, 10) == 1) REQUIRE(PQconsumeInput(connection.get()) == 1);
  }
  const PgResult result{PQgetResult(connection.get()), &PQclear};
  CHECK(std::string_view{PQresultErrorField(result.get(), PG_DIAG_SQLSTATE)} == "57014");
  CHECK(proxy.connections() == 1);
}

TEST_CASE("requests for encryption are declined, and the start-up that follows is served") {
  FaultProxy proxy{server_socket_dir()};
  const std::string folder = proxy.dsn().substr(5, proxy.dsn().find(' ') - 5);
  const Fd client = connect_to(folder + "/.s.PGSQL.5432");
  REQUIRE(client);
  for (const char last : {'\x2f', '\x30'}) {  // SSLRequest, GSSENCRequest
    const char request[] = {0, 0, 0, 8, 4, '\xd2', '\x16', last};
    REQUIRE(::send(client.get(), request, sizeof request, MSG_NOSIGNAL) == sizeof request);
    pollfd socket{client.get(), POLLIN, 0};
    REQUIRE(::poll(&socket, 1, 30000) == 1);
    std::string answer;
    CHECK(receive(client, answer) == PeerState::open);
    CHECK(answer == "N");
  }
  CHECK(proxy.connections() == 0);
}

TEST_CASE("the delay is added to every round trip") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  proxy.set_delay(20ms);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) PgResult{PQexec(connection.get(), "SELECT 1"), &PQclear};
  CHECK(std::chrono::steady_clock::now() - start >= 60ms);
  CHECK(proxy.round_trips() == 3);
}

TEST_CASE("waiting for a fault that does not fire ends in an error that tells what was seen") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  PgResult{PQexec(connection.get(), "SELECT 'literal'"), &PQclear};
  try {
    proxy.wait_fired(1, 0s);
    FAIL("no error");
  } catch (const std::runtime_error& error) {
    CHECK(std::string{error.what()} ==
          "FaultProxy: 0 faults have fired, not 1; what was seen:\n  1: connect\n  1: SELECT");
  }
}

TEST_CASE("a message that ends in COMMIT shows it in the log") {
  FaultProxy proxy{server_socket_dir()};
  const PgConnection connection = connect(proxy.dsn());
  PgResult{PQexec(connection.get(), "BEGIN; SELECT 1; COMMIT"), &PQclear};
  CHECK(proxy.log().back() == "1: BEGIN ... COMMIT");
}

TEST_CASE("random faults tell the same story for the same seed, and everything is committed in the end") {
  struct Story {
    std::vector<std::string> log;
    std::size_t fired;
    bool operator==(const Story&) const = default;
  };
  const auto tell = [](std::uint64_t seed) {
    const Table table;
    FaultProxy proxy{server_socket_dir()};
    proxy.arm_plan({.seed = seed,
                    .before_server = 30,
                    .inside = 30,
                    .answer_unawaited = 30,
                    .answer = 30,
                    .inside_answer = 30,
                    .refuse = 100});
    for (int id = 0; id < 150; ++id) {
      while (table.insert(proxy.dsn(), id) == End::failed) {
      }
    }
    CHECK(table.rows() == "150");
    return Story{proxy.log(), proxy.fired()};
  };
  const Story story = tell(42);
  CHECK(story.fired > 40);
  CHECK(tell(42) == story);
  CHECK_FALSE(tell(43) == story);
}

TEST_CASE("many clients at once are counted exactly") {
  const Table table;
  FaultProxy proxy{server_socket_dir()};
  std::vector<std::future<End>> clients;
  for (int id = 0; id < 20; ++id) {
    clients.push_back(std::async(std::launch::async, [&, id] { return table.insert(proxy.dsn(), id); }));
  }
  for (auto& client : clients) CHECK(client.get() == End::committed);
  CHECK(proxy.round_trips() == 60);
  CHECK(proxy.connections() == 20);
}

TEST_CASE("a plan draws each kind as often as it says") {
  const FaultPlan plan{.seed = 7, .before_server = 100, .answer = 50, .inside_answer = 850};
  std::size_t before = 0;
  std::size_t answer = 0;
  for (std::uint64_t number = 1; number <= 100'000; ++number) {
    const auto cut = drawn_cut(plan, number);
    REQUIRE(cut.has_value());
    before += *cut == Cut::before_server ? 1U : 0U;
    answer += *cut == Cut::answer ? 1U : 0U;
  }
  // Ten standard deviations: about 950 and 690.
  CHECK(before > 9'000);
  CHECK(before < 11'000);
  CHECK(answer > 4'300);
  CHECK(answer < 5'700);
}

TEST_CASE("a plan of more than a thousand in a thousand is refused") {
  FaultProxy proxy{server_socket_dir()};
  CHECK_THROWS_AS(proxy.arm_plan({.before_server = 600, .answer = 401}), std::invalid_argument);
}

TEST_CASE("a word is found only as a whole and in its case") {
  CHECK(wire::has_word("SELECT 1; COMMIT", "COMMIT"));
  CHECK(wire::has_word("COMMITTED; COMMIT;", "COMMIT"));
  CHECK_FALSE(wire::has_word("BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT"));
  CHECK_FALSE(wire::has_word("SELECT my_COMMIT", "COMMIT"));
  CHECK_FALSE(wire::has_word("commit", "COMMIT"));
}

TEST_CASE("sending to a closed socket is an answer, not a signal") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd ours{ends[0]};
  { const Fd theirs{ends[1]}; }
  Outbox outbox;
  outbox.push("x", TimePoint{});
  CHECK(outbox.flush(ours, TimePoint{}) == PeerState::gone);
}

TEST_CASE("the proxy's folder is gone with it") {
  std::string folder;
  {
    const FaultProxy proxy{server_socket_dir()};
    folder = proxy.dsn().substr(5, proxy.dsn().find(' ') - 5);
    CHECK(::access(folder.c_str(), F_OK) == 0);
  }
  CHECK(::access(folder.c_str(), F_OK) != 0);
}
