// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/connect_probe.hpp>

#include <string>

#include "support/catch.hpp"

using namespace idem::postgres::detail;

TEST_CASE("the states that no retry mends while connecting") {
  for (const auto* state : {"3D000", "42501", "28000", "28P01"}) CHECK(refuses_for_good(state));
  for (const auto* state : {"", "53300", "57P03", "57P01", "08006", "08001", "55000", "XX000", "3F000"})
    CHECK_FALSE(refuses_for_good(state));
}

TEST_CASE("the refusal is read from the end of a line of libpq's text") {
  CHECK(refusal_in("connection to server on socket \"/s/.s.PGSQL.5432\" failed: FATAL:  3D000\n") == "3D000");
  CHECK(
      refusal_in(
          "connection to server at \"a\" (::1), port 5432 failed: FATAL:  28P01\nconnection to server at \"a\" (1.2.3.4), "
          "port 5432 failed: FATAL:  28P01\n") == "28P01");
  CHECK(refusal_in("first failed: Connection refused\nsecond failed: FATAL:  28000") == "28000");
  CHECK(refusal_in("FATAL:  28000") == "28000");
}

TEST_CASE("what is no refusal for good is none") {
  CHECK(refusal_in("").empty());
  CHECK(refusal_in("\n\n").empty());
  CHECK(refusal_in("28000").empty());
  CHECK(refusal_in("connection failed: FATAL:  53300\n").empty());
  CHECK(refusal_in("connection failed: FATAL:  57P03\n").empty());
  CHECK(
      refusal_in(
          "connection to server on socket \"/x/.s.PGSQL.5432\" failed: No such file or directory\n\tIs the server "
          "running locally and accepting connections on that socket?\n")
          .empty());
  CHECK(refusal_in("FATAL:  28P01 and more\n").empty());
}

TEST_CASE("a string that libpq cannot read is told without a server") {
  CHECK(connect_refusal("no such = thing =") == "08001");
  CHECK(connect_refusal("dbname") == "08001");
  CHECK(connect_refusal("postgresql://[") == "08001");
}

TEST_CASE("a server that is not there does not refuse") {
  CHECK(connect_refusal("host=/nonexistent/folder dbname=x").empty());
  CHECK(connect_refusal("host=127.0.0.1 port=1 dbname=x").empty());
}
