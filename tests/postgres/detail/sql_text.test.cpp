// SPDX-License-Identifier: MIT
#include <idem/postgres/detail/sql_text.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"

using namespace idem::postgres::detail;

TEST_CASE("a literal is quoted so that it means the same at any setting") {
  CHECK(literal("") == "''");
  CHECK(literal("a") == "'a'");
  CHECK(literal("it's") == "'it''s'");
  CHECK(literal("'; DROP TABLE x; --") == "'''; DROP TABLE x; --'");
  CHECK(literal("\\") == "E'\\\\'");
  CHECK(literal("\\'") == "E'\\\\'''");
  CHECK(literal("$1 {} %s \n \xF0\x9F\x98\x80") == "'$1 {} %s \n \xF0\x9F\x98\x80'");
  std::string sql = "SELECT ";
  append_literal(sql, "a\\b");
  CHECK(sql == "SELECT E'a\\\\b'");
}

TEST_CASE("an identifier is quoted, with its quotes doubled and all else as it is") {
  CHECK(identifier("idem") == "\"idem\"");
  CHECK(identifier("a\"b") == "\"a\"\"b\"");
  CHECK(identifier("A b'\\.;") == "\"A b'\\.;\"");
}

TEST_CASE("bytes are spelled in hexadecimal, and read back") {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::string hex;
  append_hex(hex, std::as_bytes(std::span{all.data(), all.size()}));
  CHECK(hex.size() == 512);
  CHECK(hex.substr(0, 6) == "000102");
  CHECK(hex.substr(508) == "feff");
  CHECK(bytes_of_hex(hex) == all);
  CHECK(bytes_of_hex("\\x" + hex) == all);
  CHECK(bytes_of_hex("").empty());
  CHECK(bytes_of_hex("\\x").empty());
  std::string sql;
  append_bytea(sql, std::as_bytes(std::span{"a\\", 2}));
  CHECK(sql == "E'\\\\x615c'::bytea");
}

TEST_CASE("what is no hexadecimal text is refused") {
  CHECK_THROWS_AS(bytes_of_hex("\\001"), std::invalid_argument);
  CHECK_THROWS_AS(bytes_of_hex("0g"), std::invalid_argument);
}

TEST_CASE("a token survives the way to the server and back") {
  idem::ClaimToken token;
  for (std::size_t i = 0; i < token.bytes.size(); ++i) token.bytes[i] = static_cast<std::byte>(i * 17);
  CHECK(hex_of(token) == "00112233445566778899aabbccddeeff");
  CHECK(token_of("00112233-4455-6677-8899-aabbccddeeff") == token);
  CHECK(token_of(hex_of(token)) == token);
}
