// SPDX-License-Identifier: MIT
#include <idem/key.hpp>

#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "support/catch.hpp"

namespace {

std::string why_invalid(std::string_view tenant, std::string_view consumer, std::string_view event_id) {
  try {
    (void)idem::Key{tenant, consumer, event_id};
    return {};
  } catch (const idem::InvalidKey& error) {
    return error.what();
  }
}

/// Refused by the constructor, and by the question that does not throw.
bool refused(std::string_view tenant, std::string_view consumer, std::string_view event_id) {
  const bool thrown = !why_invalid(tenant, consumer, event_id).empty();
  CHECK(thrown == !idem::Key::valid(tenant, consumer, event_id));
  return thrown;
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<idem::Key>);
static_assert(noexcept(idem::Key::valid("", "c", "e")));

TEST_CASE("a key keeps its three parts byte for byte, from any kind of text") {
  std::string moved(40, 'm');
  const char* const data = moved.data();
  const idem::Key key{"acme", std::string_view{"charge.v1"}, std::move(moved)};
  CHECK(key.tenant() == "acme");
  CHECK(key.consumer() == "charge.v1");
  CHECK(key.event_id() == std::string(40, 'm'));
  CHECK(static_cast<const void*>(key.event_id().data()) == static_cast<const void*>(data));
}

TEST_CASE("an empty or blank event id makes no key, so two such messages never collide") {
  CHECK(refused("t", "c", ""));
  CHECK(refused("t", "c", " "));
  CHECK(refused("t", "c", " \t\n\v\f\r"));
  CHECK_FALSE(refused("t", "c", " a "));
  CHECK_FALSE(refused("t", "c", "\u00a0"));  // no ASCII white space: an id like any other
}

TEST_CASE("a consumer needs a name, a tenant does not") {
  CHECK(refused("t", "", "e"));
  CHECK(refused("t", " \t", "e"));
  CHECK_FALSE(refused("", "c", "e"));
  CHECK_FALSE(refused(" ", "c", "e"));
}

TEST_CASE("NUL is refused in every part: a database would cut there and make one event of two") {
  using namespace std::string_view_literals;
  CHECK(refused("t", "c", "k\0one"sv));
  CHECK(refused("t", "c", "k\0two"sv));
  CHECK(refused("t\0"sv, "c", "e"));
  CHECK(refused("t", "c\0"sv, "e"));
}

TEST_CASE("limits count bytes, not characters") {
  const std::string emoji = "\U0001F600";
  std::string of_128_emoji;
  for (int i = 0; i < 128; ++i) of_128_emoji += emoji;
  CHECK_FALSE(refused("t", "c", of_128_emoji));
  CHECK(refused("t", "c", of_128_emoji + "x"));
  CHECK_FALSE(refused("t", "c", std::string(512, 'e')));
  CHECK(refused("t", "c", std::string(513, 'e')));
  CHECK_FALSE(refused(std::string(128, 't'), std::string(128, 'c'), "e"));
  CHECK(refused(std::string(129, 't'), "c", "e"));
  CHECK(refused("t", std::string(129, 'c'), "e"));
}

TEST_CASE("text that is not UTF-8 is refused in every part") {
  for (const char* const bad :
       {"\x80",                                                              // a continuation alone
        "\xC3",                                                              // cut short
        "\xC3(",                                                             // no continuation
        "\xC0\xAF", "\xC1\xBF",                                              // overlong
        "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",  // surrogates
        "\xF4\x90\x80\x80",                                                  // above U+10FFFF
        "\xF5\x80\x80\x80", "\xFF"}) {
    const std::string text = std::string{"id"} + bad;
    CHECK(refused("t", "c", text));
    CHECK(refused("t", text, "e"));
    CHECK(refused(text, "c", "e"));
  }
  for (const char* const good :
       {"\x7F", "\u0080", "\u07FF", "\u0800", "\uD7FF", "\uE000", "\uFFFF", "\U00010000", "\U0010FFFF"})
    CHECK_FALSE(refused("t", "c", good));
}

TEST_CASE("nothing is trimmed, folded or normalised") {
  const auto id = [](const char* text) { return idem::Key{"t", "c", text}; };
  CHECK(id("caf\u00e9") != id("cafe\u0301"));  // NFC and NFD of one word
  CHECK(id("a") != id("A"));
  CHECK(id("a") != id("a "));
}

TEST_CASE("tenants and consumers do not share events") {
  const idem::Key key{"A", "c", "1"};
  CHECK(key == idem::Key{"A", "c", "1"});
  CHECK(key != idem::Key{"B", "c", "1"});
  CHECK(key != idem::Key{"A", "d", "1"});
}

TEST_CASE("characters do not run from one part into the next") {
  const idem::Key a{"ab", "c", "d"};
  const idem::Key b{"a", "bc", "d"};
  const idem::Key c{"a", "b", "cd"};
  const idem::Key swapped{"c", "ab", "d"};
  const std::hash<idem::Key> hash;
  CHECK(a != b);
  CHECK(b != c);
  CHECK(hash(a) != hash(b));
  CHECK(hash(b) != hash(c));
  CHECK(hash(a) != hash(swapped));
  CHECK(hash(a) == hash(idem::Key{"ab", "c", "d"}));
  CHECK(std::unordered_set<idem::Key>{a, b, c, swapped, a}.size() == 4);
}

TEST_CASE("keys are ordered by their bytes") {
  CHECK(idem::Key{"a", "c", "e"} < idem::Key{"b", "a", "a"});
  CHECK(idem::Key{"a", "c", "z"} < idem::Key{"a", "c", "\u00e9"});  // bytes above 0x7F come last
}

TEST_CASE("a key reads as one line without control characters") {
  CHECK(idem::Key{"acme", "charge.v1", "order/17"}.to_string() == "acme/charge.v1/order/17");
  CHECK(idem::Key{"t", "c", "a\nb\x1b[31m\x7f\u0085\r\t"}.to_string() ==
        R"(t/c/a\nb\x1b[31m\x7f\xc2\x85\r\t)");
  CHECK(idem::Key{"t", "c", "a\u202Eb\u2028"}.to_string() == R"(t/c/a\xe2\x80\xaeb\xe2\x80\xa8)");
  CHECK(idem::Key{"t", "c", "gr\u00fcn"}.to_string() == "t/c/gr\u00fcn");
}

TEST_CASE("two keys never read the same") {
  const auto read = [](const char* t, const char* c, const char* e) {
    return idem::Key{t, c, e}.to_string();
  };
  CHECK(read("a/b", "c", "d") != read("a", "b/c", "d"));
  CHECK(read("a", "b/c", "d") != read("a", "b", "c/d"));
  CHECK(read("a\\", "b", "c") != read("a", "\\b", "c"));
  CHECK(read("a\\/b", "c", "d") != read("a/b", "c", "d"));
  CHECK(read("t", "c", "x\n") != read("t", "c", "x\\n"));
}

TEST_CASE("the error names the part, the rule and the value, escaped and shortened") {
  CHECK(
      why_invalid("t", "c", std::string_view{"a\0\n", 3}) ==
      R"(idem: the event id "a\x00\n" (3 bytes, 512 allowed) contains NUL, which databases cut or refuse: encode it)");
  const std::string too_long = why_invalid("t", "c", std::string(600, 'e'));
  CHECK(too_long.find("event id") != std::string::npos);
  CHECK(too_long.find("600 bytes, 512 allowed") != std::string::npos);
  CHECK(too_long.find(std::string(64, 'e') + "\u2026") != std::string::npos);
  CHECK(too_long.find(std::string(65, 'e')) == std::string::npos);
  CHECK(why_invalid("t", "", "e").find("the consumer name \"\"") != std::string::npos);
  CHECK(why_invalid("\xFF", "c", "e").find(R"(the tenant "\xff")") != std::string::npos);
}

TEST_CASE("a consumer name can be checked before there is an event") {
  CHECK_NOTHROW(idem::Key::check_consumer("charge-order.v1"));
  CHECK_THROWS_AS(idem::Key::check_consumer(""), idem::InvalidKey);
  CHECK_THROWS_AS(idem::Key::check_consumer("\n"), idem::InvalidKey);
  CHECK_THROWS_AS(idem::Key::check_consumer(std::string(129, 'c')), std::invalid_argument);
}
