// SPDX-License-Identifier: MIT
#include <idem/postgres/exec.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;
using idem::postgres::exec;

namespace {

/// A connection with an open transaction and a table that goes with it.
struct Bench {
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  Bench() { tx.exec(std::string{"CREATE TEMP TABLE t (id text PRIMARY KEY) ON COMMIT DROP"}); }
  [[nodiscard]] std::string ids() {
    return tx.exec(std::string{"SELECT coalesce(string_agg(id, ',' ORDER BY id), '') FROM t"})[0][0].c_str();
  }
};

void swallow(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace

TEST_CASE("every kind of parameter arrives as it was given") {
  Bench bench;
  auto& tx = bench.tx;
  const auto says = [&](const std::string& type, const auto& value) {
    const pqxx::result rows =
        exec(tx, "SELECT ($1::" + type + ")::text", value);  // libpqxx 8: fields refer to it
    return rows[0][0].is_null() ? std::string{"NULL"} : std::string{rows[0][0].c_str()};
  };
  CHECK(says("text", "literal") == "literal");
  CHECK(says("text", std::string{"string"}) == "string");
  CHECK(says("text", std::string_view{"string view, cut"}.substr(0, 11)) == "string view");
  const char* const pointer = "pointer";
  CHECK(says("text", pointer) == "pointer");
  CHECK(says("text", "") == "");
  CHECK(says("text", "'; DROP TABLE t; -- \\ $1 \" \xF0\x9F\x98\x80\n") ==
        "'; DROP TABLE t; -- \\ $1 \" \xF0\x9F\x98\x80\n");
  CHECK(says("boolean", true) == "true");
  CHECK(says("boolean", false) == "false");
  CHECK(says("bigint", std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(says("bigint", std::numeric_limits<std::int64_t>::max()) == "9223372036854775807");
  CHECK(says("numeric", std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
  CHECK(says("int", std::int8_t{-128}) == "-128");
  CHECK(says("int", std::uint8_t{200}) == "200");
  CHECK(says("int", std::int16_t{-300}) == "-300");
  CHECK(says("int", 42L) == "42");
  CHECK(says("text", 'c') == "c");
  CHECK(says("int", std::optional<int>{7}) == "7");
  CHECK(says("int", std::optional<int>{}) == "NULL");
  CHECK(says("text", std::optional<std::string>{}) == "NULL");
  CHECK(says("text", std::optional<std::string>{"x"}) == "x");
  CHECK(says("text", std::optional<std::string_view>{"x"}) == "x");
  CHECK(says("int", std::nullopt) == "NULL");
  CHECK(says("int", nullptr) == "NULL");
}

TEST_CASE("floating point numbers come back as they went") {
  Bench bench;
  for (const double value :
       {0.1, 1.0 / 3, -0.0, 1e308, 5e-324, 123456789.123456789, std::numeric_limits<double>::max()}) {
    CAPTURE(value);
    const double back = std::strtod(exec(bench.tx, "SELECT $1::float8", value)[0][0].c_str(), nullptr);
    CHECK(back == value);
    CHECK(std::signbit(back) == std::signbit(value));
  }
  CHECK(std::string{
            exec(bench.tx, "SELECT $1::float8", std::numeric_limits<double>::infinity())[0][0].c_str()} ==
        "Infinity");
  CHECK(std::string{
            exec(bench.tx, "SELECT $1::float8", std::numeric_limits<double>::quiet_NaN())[0][0].c_str()} ==
        "NaN");
  CHECK(std::string{exec(bench.tx, "SELECT $1::float4", 0.1F)[0][0].c_str()} == "0.1");
}

TEST_CASE("bytes arrive whole, NUL and all") {
  Bench bench;
  std::vector<std::byte> bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<std::byte>(i));
  CHECK(exec(bench.tx, "SELECT length($1::bytea)", bytes)[0][0].as<int>() == 256);
  CHECK(exec(bench.tx, "SELECT get_byte($1::bytea, 0) + get_byte($1::bytea, 255)", bytes)[0][0].as<int>() ==
        255);
  CHECK(exec(bench.tx, "SELECT length($1::bytea)", std::vector<std::byte>{})[0][0].as<int>() == 0);
  CHECK(exec(bench.tx, "SELECT length($1::bytea)", std::array{std::byte{0}, std::byte{1}})[0][0].as<int>() ==
        2);
  CHECK(exec(bench.tx, "SELECT length($1::bytea)", std::span<const std::byte>{bytes}.first(3))[0][0]
            .as<int>() == 3);
  CHECK(exec(bench.tx, "SELECT length($1::bytea)", std::optional{bytes})[0][0].as<int>() == 256);
  CHECK(exec(bench.tx, "SELECT $1::bytea IS NULL", std::optional<std::vector<std::byte>>{})[0][0].as<bool>());
}

TEST_CASE("text with a NUL is refused before it is sent, and told without its value") {
  Bench bench;
  const std::string nul{"secret\0b", 8};
  const auto refused = [&](const auto& value) {
    try {
      exec(bench.tx, "INSERT INTO t VALUES ($1 || $2)", "x", value);
    } catch (const PermanentError& e) {
      return std::string{e.what()};
    }
    return std::string{};
  };
  for (const auto& why : {refused(nul), refused(std::string_view{nul}), refused(std::optional{nul}),
                          refused(std::optional<std::string_view>{nul}), refused('\0')}) {
    CAPTURE(why);
    CHECK(why.find("$2") != std::string::npos);
    CHECK(why.find("secret") == std::string::npos);
  }
  CHECK(bench.ids().empty());
}

TEST_CASE("statements without parameters work too") {
  Bench bench;
  exec(bench.tx, "INSERT INTO t VALUES ('a'), ('b')");
  CHECK(bench.ids() == "a,b");
}

TEST_CASE("require_rows throws unless exactly so many rows were affected") {
  Bench bench;
  exec(bench.tx, "INSERT INTO t VALUES ('a'), ('b')");
  const auto touch = [&](const std::string& where) {
    return exec(bench.tx, "UPDATE t SET id = id WHERE " + where);
  };
  CHECK_NOTHROW(postgres::require_rows(2, touch("true")));
  CHECK_NOTHROW(postgres::require_rows(0, touch("false")));
  CHECK_THROWS_AS(postgres::require_rows(1, touch("true")), PreconditionFailed);
  CHECK_THROWS_AS(postgres::require_rows(1, touch("false")), PreconditionFailed);
}

TEST_CASE("what an abandoned subtransaction did with parameters alone is undone") {
  Bench bench;
  exec(bench.tx, "INSERT INTO t VALUES ($1)", "before");
  {
    pqxx::subtransaction abandoned{bench.tx};
    exec(abandoned, "INSERT INTO t VALUES ($1)", "abandoned");
  }
  {
    pqxx::subtransaction aborted{bench.tx};
    exec(aborted, "INSERT INTO t VALUES ($1)", "aborted");
    aborted.abort();
  }
  {
    pqxx::subtransaction kept{bench.tx};
    exec(kept, "INSERT INTO t VALUES ($1)", "kept");
    kept.commit();
  }
  CHECK(bench.ids() == "before,kept");
}

TEST_CASE("what failed in a subtransaction leaves the transaction usable") {
  Bench bench;
  swallow([&] {
    pqxx::subtransaction attempt{bench.tx};
    exec(attempt, "INSERT INTO t VALUES ($1)", "undone");
    exec(attempt, "INSERT INTO t VALUES ($1)", "undone");
  });
  swallow([&] {
    pqxx::subtransaction first_statement{bench.tx};
    exec(first_statement, "SELECT 1/$1::int", 0);
  });
  exec(bench.tx, "INSERT INTO t VALUES ($1)", "after");
  CHECK(bench.ids() == "after");
}

TEST_CASE("an abandoned subtransaction undoes what a nested one committed") {
  Bench bench;
  {
    pqxx::subtransaction outer{bench.tx};
    exec(outer, "INSERT INTO t VALUES ($1)",
         "outer");  // libpqxx 6 starts it with its own first statement only
    {
      pqxx::subtransaction inner{outer};
      exec(inner, "INSERT INTO t VALUES ($1)", "inner");
      inner.commit();
    }
  }
  CHECK(bench.ids().empty());
}

TEST_CASE("a subtransaction of a handler is as good as one of the caller's own") {
  Playground place{"ex_handler"};
  PostgresStore store{server_dsn(), place.options()};
  store.create_schema();
  IdempotentConsumer consumer{"c", store, [&](postgres::Transaction& tx, const Note& note) {
                                {
                                  pqxx::subtransaction abandoned{tx};
                                  place.write(abandoned, "abandoned");
                                }
                                pqxx::subtransaction kept{tx};
                                place.write(kept, note.id);
                                kept.commit();
                              }};
  CHECK(told(consumer(Note{"e"})) == "applied");
  CHECK(place.effect_ids() == "e");
}
