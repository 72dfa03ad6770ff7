// SPDX-License-Identifier: MIT
#include <idem/json.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"

using idem::fingerprint_json;
using idem::JsonExcept;
using idem::JsonOnly;
using idem::Revision;
using namespace std::string_view_literals;

namespace {

bool same(std::string_view a, std::string_view b) { return fingerprint_json(a) == fingerprint_json(b); }

/// What the refusal of a text says; empty when it is taken.
std::string refusal(std::string_view text) {
  try {
    (void)fingerprint_json(text);
    return {};
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("fingerprints of JSON are stored: their hash stays as it is") {
  // Computed by another program from the encoding described in json_value.hpp.
  CHECK(fingerprint_json(
            R"({"d":false,"a":[1,2.50,-1e400,0],"b":{"y":null,"x":"A\u00e9\ud83d\ude00"},"c":true})")
            .to_hex() == "be4e1d6c239aac49db9c87eac09314d1d10a0ecc221656072cdb92e125f422d5");
  CHECK(
      fingerprint_json(R"({"amount":500,"order":{"id":"o-1"}})", JsonOnly{{"/order/id", "/amount", "/gone"}})
          .to_hex() == "294e5c7df319a80eb8f16e5d65b880233398dae692e50dc0730ef75c2a1cba00");
  CHECK(fingerprint_json(R"({"a":[1,2,3],"at":"now"})", JsonExcept{{"/at", "/a/0", "/a/2"}}).to_hex() ==
        "f23a21a0243716f1fedec8382dc1dc5aaf0bfd48abb2d5038e5477b54338e465");
  CHECK(fingerprint_json("1").scheme() == idem::FingerprintScheme::json);
}

TEST_CASE("the order of members does not count, at any depth") {
  CHECK(
      same(R"({"a":1,"b":{"c":2,"d":[{"e":3,"f":4}]}})", R"({ "b" : {"d":[{"f":4,"e":3}],"c":2}, "a":1 })"));
}

TEST_CASE("the order of elements counts, and so does where a value stands") {
  CHECK_FALSE(same("[1,2]", "[2,1]"));
  CHECK_FALSE(same("[[1],2]", "[[1,2]]"));
  CHECK_FALSE(same("[[],[1]]", "[[1],[]]"));
  CHECK_FALSE(same(R"({"a":{"b":1}})", R"({"a":{},"b":1})"));
  CHECK_FALSE(same(R"({"ab":"c"})", R"({"a":"bc"})"));
}

TEST_CASE("values of different kinds differ") {
  const std::vector<std::string> all{"null",      "true",     "false",   "0",     "1",   "\"\"",
                                     "\"0\"",     "\"1\"",    "[]",      "{}",    "[0]", "[[]]",
                                     R"({"":0})", "\"null\"", "\"1e0\"", "[null]"};
  for (const auto& a : all) {
    for (const auto& b : all) CHECK(same(a, b) == (a == b));
  }
}

TEST_CASE("integers are exact at any size") {
  CHECK_FALSE(same("9007199254740993", "9007199254740992"));          // 2^53 + 1
  CHECK_FALSE(same("18446744073709551616", "18446744073709551617"));  // 2^64
  const std::string long_number(5'000, '7');
  CHECK(same(long_number, long_number));
  CHECK_FALSE(same(long_number, long_number + "7"));
  CHECK_FALSE(same(long_number + "1", long_number + "2"));
  CHECK_FALSE(same("-1", "1"));
}

TEST_CASE("numbers are compared by their decimal value, however they are written") {
  CHECK(same("1", "1.0"));
  CHECK(same("1", "10e-1"));
  CHECK(same("1", "0.1E+1"));
  CHECK(same("100", "1e2"));
  CHECK(same("1e2", "1E+0002"));
  CHECK(same("0.5", "5e-1"));
  CHECK(same("0.0010", "1e-3"));
  CHECK(same("-120", "-1.2e2"));
  CHECK(same("123.456", "123456e-3"));
  CHECK(same("1e400", "10e399"));
  CHECK_FALSE(same("0.1", "0.10000000000000001"));
  CHECK_FALSE(same("1e400", "1e401"));
  CHECK_FALSE(same("1", "10"));
  CHECK_FALSE(same("0.1", "0.01"));
}

TEST_CASE("zero is one, whatever its sign and exponent") {
  for (const char* const zero : {"-0", "0.0", "-0.00", "0e5", "0e-99999999999999999999"})
    CHECK(same("0", zero));
  CHECK_FALSE(same("0", "1e-999999999"));
}

TEST_CASE("text is compared after its escapes are resolved") {
  CHECK(same(R"("\u0041")", R"("A")"));
  CHECK(same(R"("\u00e9")", "\"\u00e9\""));
  CHECK(same(R"("\ud83d\ude00")", "\"\U0001F600\""));
  CHECK(same(R"("\/\b\f\n\r\t\"\\")", R"("/\u0008\u000c\u000a\u000D\u0009\u0022\u005c")"));
  CHECK(same(R"({"\u0061":1})", R"({"a":1})"));
  CHECK_FALSE(same(R"("\u0000")", R"("")"));
  CHECK_FALSE(same(R"("\u00e9")", R"("e\u0301")"));  // NFC and NFD
  CHECK_FALSE(same(R"("\\u0041")", R"("A")"));
}

TEST_CASE("digits inside text are text") {
  CHECK_FALSE(same(R"("1.0")", R"("1")"));
  CHECK_FALSE(same(R"({"a\"1":1})", R"({"a\"2":1})"));
  CHECK(same(R"(["\\",1.0])", R"(["\\",1])"));
}

TEST_CASE("a member named twice is refused, also when it is spelled with escapes") {
  CHECK_FALSE(refusal(R"({"a":1,"a":1})").empty());
  CHECK_FALSE(refusal(R"({"a":1,"\u0061":2})").empty());
  CHECK_FALSE(refusal(R"([{"b":{"a":1,"c":2,"a":3}}])").empty());
  CHECK(refusal(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]})").empty());
}

TEST_CASE("text that is not JSON is refused") {
  for (const std::string_view bad : {""sv,
                                     " "sv,
                                     "{"sv,
                                     "["sv,
                                     "[1,]"sv,
                                     "{\"a\":1,}"sv,
                                     "{a:1}"sv,
                                     "'a'"sv,
                                     "nul"sv,
                                     "NaN"sv,
                                     "Infinity"sv,
                                     "-Infinity"sv,
                                     "1 2"sv,
                                     "[1][2]"sv,
                                     "01"sv,
                                     "-01"sv,
                                     "1."sv,
                                     ".5"sv,
                                     "+1"sv,
                                     "-"sv,
                                     "1e"sv,
                                     "1e+"sv,
                                     "1.2.3"sv,
                                     "1-2"sv,
                                     "1e5.5"sv,
                                     "0x10"sv,
                                     "1true"sv,
                                     "true1"sv,
                                     "// c\n1"sv,
                                     "\"a"sv,
                                     "\"\\x\""sv,
                                     "\"\n\""sv,
                                     "{}\0evil"sv,
                                     "1\0"sv,
                                     "\"a\0b\""sv,
                                     "\"\xFF\""sv,
                                     "\"\xC0\xAF\""sv,
                                     "\"\xED\xA0\x80\""sv,
                                     "\"\\"sv,
                                     "]"sv,
                                     "{\"a\"}"sv}) {
    INFO(bad);
    CHECK_FALSE(refusal(bad).empty());
  }
}

TEST_CASE("half of a surrogate pair is refused") {
  for (const char* const bad :
       {R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", R"("\ude00\ud83d")", R"({"\ud83d":1})"})
    CHECK_FALSE(refusal(bad).empty());
}

TEST_CASE("nesting is bounded") {
  CHECK(refusal(nested(512)).empty());
  CHECK(refusal(nested(513)).find("deeper than 512") != std::string::npos);
  CHECK_FALSE(refusal(std::string(1'000'000, '[')).empty());
}

TEST_CASE("an exponent of more than nine digits is refused") {
  CHECK(refusal("1e999999999").empty());
  CHECK(refusal("1e-0000000000999999999").empty());
  CHECK_FALSE(refusal("1e1000000000").empty());
  CHECK_FALSE(refusal("1e99999999999999999999").empty());
}

TEST_CASE("a refusal says where, and never quotes the text") {
  for (const char* const bad : {R"({"secret":"hunter2",})", R"({"secret":1,"secret":2})", R"(["hunter2",01])",
                                R"({"secret":"\ud83d"})", R"({"secret" "hunter2"})"}) {
    const std::string text = refusal(bad);
    CHECK(text.find("idem::fingerprint_json: ") == 0);
    CHECK(text.find("hunter2") == std::string::npos);
    CHECK(text.find("secret") == std::string::npos);
  }
  CHECK(refusal(R"([1.000000, 10, x])").find("near byte 16") != std::string::npos);
}

TEST_CASE("with JsonOnly nothing else counts") {
  const JsonOnly only{{"/order/id", "/lines/0/sku"}};
  const auto print = [&](std::string_view text) { return fingerprint_json(text, only); };
  const auto base = print(R"({"order":{"id":1,"at":"x"},"lines":[{"sku":"a"}]})");
  CHECK(base == print(R"({"lines":[{"sku":"a","n":2},{"sku":"b"}],"order":{"at":"y","id":1.0}})"));
  CHECK(base != print(R"({"order":{"id":2},"lines":[{"sku":"a"}]})"));
  CHECK(base != print(R"({"order":{"id":1},"lines":[{"sku":"b"}]})"));
  CHECK(base != print(R"({"order":{"id":"a"},"lines":[{"sku":1}]})"));
  CHECK(base == fingerprint_json(R"({"order":{"id":1},"lines":[{"sku":"a"}]})",
                                 JsonOnly{{"/lines/0/sku", "/order/id", "/order/id"}}));
  CHECK(fingerprint_json("[1]", JsonOnly{{""}}) != fingerprint_json("[2]", JsonOnly{{""}}));
}

TEST_CASE("with JsonOnly a member that is not there is absent, which is not null") {
  const JsonOnly only{{"/a", "/b"}};
  const auto absent = fingerprint_json(R"({"a":1})", only);
  CHECK(absent != fingerprint_json(R"({"a":1,"b":null})", only));
  CHECK(absent != fingerprint_json(R"({"b":1})", only));
  CHECK(absent == fingerprint_json(R"({"a":1,"c":2})", only));
}

TEST_CASE(
    "with JsonOnly pointers that all point at nothing are refused, or every message would look the same") {
  CHECK_THROWS_AS(fingerprint_json(R"({"a":1})", JsonOnly{{"/b"}}), std::invalid_argument);
  CHECK_THROWS_AS(fingerprint_json(R"({"a":1})", JsonOnly{{"/a/b", "/A"}}), std::invalid_argument);
  CHECK_THROWS_AS(fingerprint_json(R"({"a":1})", JsonOnly{}), std::invalid_argument);
  for (const char* const index :
       {"/a/1", "/a/-", "/a/00", "/a/+0", "/a/0x", "/a/", "/a/99999999999999999999"})
    CHECK_THROWS_AS(fingerprint_json(R"({"a":[1]})", JsonOnly{{index}}), std::invalid_argument);
}

TEST_CASE("with JsonExcept all else counts") {
  const JsonExcept except{{"/received_at", "/meta/attempt"}};
  const auto base = fingerprint_json(R"({"id":1,"meta":{"src":"x"}})", except);
  CHECK(base == fingerprint_json(R"({"received_at":"now","meta":{"attempt":3,"src":"x"},"id":1})", except));
  CHECK(base == fingerprint_json(R"({"id":1,"meta":{"src":"x"}})"));
  CHECK(base != fingerprint_json(R"({"id":2,"meta":{"src":"x"}})", except));
  CHECK(base != fingerprint_json(R"({"id":1,"meta":{"src":"x","received_at":"now"}})", except));
  CHECK(base ==
        fingerprint_json(R"({"id":1,"meta":{"src":"x"}})", JsonExcept{{"/none", "/id/0", "/meta/src/x"}}));
}

TEST_CASE("with JsonExcept array elements are counted as they were sent") {
  CHECK(fingerprint_json("[1,2,3]", JsonExcept{{"/0", "/1"}}) == fingerprint_json("[3]"));
  CHECK(fingerprint_json("[1,[2,4],3]", JsonExcept{{"/1", "/1/0"}}) == fingerprint_json("[1,3]"));
}

TEST_CASE("with JsonExcept the whole text cannot be left out") {
  CHECK_THROWS_AS(fingerprint_json("[1]", JsonExcept{{""}}), std::invalid_argument);
}

TEST_CASE("pointers spell slash and tilde with escapes") {
  const std::string_view text = R"({"a/b":1,"m~n":2,"":3})";
  CHECK(fingerprint_json(text, JsonExcept{{"/a~1b", "/m~0n"}}) == fingerprint_json(R"({"":3})"));
  CHECK(fingerprint_json(text, JsonExcept{{"/"}}) == fingerprint_json(R"({"a/b":1,"m~n":2})"));
}

TEST_CASE("a malformed pointer is refused by name") {
  for (const char* const bad : {"a", "a/b", "/a~", "/a~2", "#/a"}) {
    INFO(bad);
    CHECK_THROWS_AS(fingerprint_json(R"({"a":1})", JsonOnly{{bad}}), std::invalid_argument);
    CHECK_THROWS_AS(fingerprint_json(R"({"a":1})", JsonExcept{{bad}}), std::invalid_argument);
  }
}

TEST_CASE("a revision sets fingerprints of another choice of pointers apart") {
  const JsonOnly only{{"/a"}};
  const std::string_view text = R"({"a":1})";
  CHECK(fingerprint_json(Revision{2}, text, only) != fingerprint_json(text, only));
  CHECK_FALSE(comparable(fingerprint_json(Revision{2}, text, only), fingerprint_json(text, only)));
  CHECK(fingerprint_json(Revision{2}, text).revision() == 2);
  CHECK(fingerprint_json(Revision{3}, text, JsonExcept{{"/b"}}) == fingerprint_json(Revision{3}, text));
}
