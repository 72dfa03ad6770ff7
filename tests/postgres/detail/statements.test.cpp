// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/statements.hpp>

#include <algorithm>
#include <chrono>
#include <string>

#include "support/catch.hpp"

using namespace idem;
using namespace idem::postgres::detail;
using namespace std::chrono_literals;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string claim_of(const Statements& statements, const Key& key, Duration wait, Spelling spelling) {
  const Claim claim{.key = key, .fingerprint = fingerprint_of(1)};
  Session session;
  session.lock_timeout = "7s";
  return statements.claim(claim, ClaimToken{}, wait, session, spelling);
}

const Key key{"t'", "c\\", "e"};

}  // namespace

TEST_CASE("a claim sets the isolation level and the wait, and names the conflict's target") {
  const auto spelling = GENERATE(Spelling::prepared, Spelling::in_full);
  const Statements statements{
      {.schema = "s\"x", .isolation = Isolation::serializable, .tenant_setting = "app.\"t"}};
  const std::string sql = claim_of(statements, key, 1500ms, spelling);
  CHECK(sql.substr(0, 29) == "BEGIN ISOLATION LEVEL SERIALI");
  CHECK(has(sql, "SET LOCAL lock_timeout = '1500ms'"));
  CHECK(has(sql, "'t'''"));
  CHECK(has(sql, "E'c\\\\'"));
  CHECK(has(sql, "'7s'"));
  const std::string whole = spelling == Spelling::prepared ? statements.prepare() : sql;
  CHECK(has(whole, "ON CONFLICT (tenant, consumer, event_id) DO NOTHING"));
  CHECK(has(whole, "INTO \"s\"\"x\".keys "));
}

TEST_CASE("a wait is at least a millisecond, for 0 would wait for ever, and at most what the server takes") {
  const Statements statements{{}};
  CHECK(has(claim_of(statements, key, 0ns, Spelling::prepared), "lock_timeout = '1ms'"));
  CHECK(has(claim_of(statements, key, -5s, Spelling::prepared), "lock_timeout = '1ms'"));
  CHECK(has(claim_of(statements, key, 1ns, Spelling::prepared), "lock_timeout = '1ms'"));
  CHECK(has(claim_of(statements, key, 1000001ns, Spelling::prepared), "lock_timeout = '2ms'"));
  CHECK(has(claim_of(statements, key, Duration::max(), Spelling::prepared), "lock_timeout = '2147483647ms'"));
}

TEST_CASE("the guard comes before COMMIT, in one message with it") {
  const auto spelling = GENERATE(Spelling::prepared, Spelling::in_full);
  const Statements statements{{}};
  for (const auto& value : {StoredValue{}, StoredValue{""}, StoredValue{"v"}}) {
    const std::string sql = statements.commit("42", key, value, spelling);
    CAPTURE(sql);
    CHECK(sql.size() > 8);
    CHECK(sql.substr(sql.size() - 8) == "; COMMIT");
    CHECK(sql.find("'42'") < sql.find("; COMMIT"));
    CHECK(has(sql, "UPDATE") == value.has_value());
  }
  const std::string back = statements.roll_back("42", spelling);
  CHECK(has(back, "'42'"));
  CHECK(back.substr(back.size() - 10) == "; ROLLBACK");
}

TEST_CASE("the look-up leaves the transaction first, and sets the tenant again") {
  const Statements statements{{.tenant_setting = "app.tenant"}};
  const std::string sql = statements.find(key, Spelling::in_full);
  CHECK(sql.substr(0, 10) == "ROLLBACK; ");
  CHECK(sql.find("app") < sql.find("SELECT claim_token"));
  CHECK(sql.find("'t'''") < sql.find("SELECT claim_token"));
}

TEST_CASE("a prepared statement's name tells its text, and fits PostgreSQL's limit") {
  const Statements a{{.schema = "a"}};
  const Statements b{{.schema = "b"}};
  const auto name = [](const Statements& s) { return s.prepare().substr(8, s.prepare().find(' ', 8) - 8); };
  CHECK(name(a) != name(b));
  CHECK(name(a) == name(Statements{{.schema = "a", .isolation = Isolation::serializable}}));
  CHECK(name(a).size() < 64);
}

TEST_CASE("our own text has no backslash whose meaning a setting could change") {
  const auto always_escapes = [](std::string sql) {  // only E'\\x...' is left out
    for (std::size_t at = 0; (at = sql.find("E'\\\\x", at)) != std::string::npos;) sql.erase(at, 5);
    return sql;
  };
  const Statements statements{{}};
  const Key plain{"t", "c", "e"};
  for (const auto spelling : {Spelling::prepared, Spelling::in_full})
    for (const auto& sql : {claim_of(statements, plain, 1s, spelling),
                            statements.commit("42", plain, StoredValue{std::string{"\\\0'", 3}}, spelling),
                            statements.find(plain, spelling), statements.roll_back("42", spelling),
                            Statements::roll_back_failed("42"), statements.prepare()})
      CHECK_FALSE(has(always_escapes(sql), "\\"));
}
