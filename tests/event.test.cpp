// SPDX-License-Identifier: MIT
#include <idem/event.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <idem/key.hpp>
#include "support/catch.hpp"

using idem::event_id;

static_assert(std::is_aggregate_v<idem::Event>);

TEST_CASE("an event left at its defaults says that nothing is known") {
  const idem::Event event;
  CHECK(event.tenant.empty());
  CHECK(event.id.empty());
  CHECK_FALSE(event.fingerprint.given());
  CHECK(event.ordering_key.empty());
  CHECK(event.payload.empty());
  CHECK(event.delivery_count == 0);
  CHECK_FALSE(event.occurred_at.has_value());
  CHECK_FALSE(event.visible_until.has_value());
}

TEST_CASE("an event takes its members by name, a delivery count of int among them") {
  const int received = 3;
  const idem::Event event{.tenant = "acme", .id = "e-1", .delivery_count = received};
  CHECK(event.delivery_count == 3);
}

TEST_CASE("event ids are stored: their format stays as it is") {
  CHECK(event_id("a") == "a");
  CHECK(event_id("order-paid", "e-1") == "order-paid:e-1");
  CHECK(event_id(std::string{"order-paid"}, std::string_view{"e-1"}, 17) == "order-paid:e-1:17");
  CHECK(event_id(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::uint64_t>::max(),
                 std::uint8_t{7}) == "-9223372036854775808:18446744073709551615:7");
  CHECK(event_id("a:b", "c\\d") == R"(a\:b:c\\d)");
  CHECK(event_id("a", "") == "a:");
  CHECK(event_id("", "a") == ":a");
  CHECK(event_id("a", "", "b") == "a::b");
  CHECK(event_id("gr\u00fcn", " x ") == "gr\u00fcn: x ");
}

TEST_CASE("different parts never give one id") {
  const std::vector<std::string> alphabet{"", "a", ":", "\\", "a:", ":a", "\\:", "a\\", "::", "ab", "b"};
  std::set<std::string> ids;
  std::size_t made = 0;
  const auto keep = [&](const std::string& id, bool named) {
    CHECK(id.empty() == !named);
    if (!named) return;
    ids.insert(id);
    ++made;
  };
  for (const auto& a : alphabet) {
    keep(event_id(a), !a.empty());
    for (const auto& b : alphabet) {
      keep(event_id(a, b), !(a + b).empty());
      for (const auto& c : alphabet) keep(event_id(a, b, c), !(a + b + c).empty());
    }
  }
  CHECK(made == 11 + 11 * 11 + 11 * 11 * 11 - 3);
  CHECK(ids.size() == made);
}

TEST_CASE("two hooks that share a delivery id are two events") {
  const std::string delivery = "a455cbab-1f52-5c0f-8a04-6b255882e69f";
  CHECK(event_id(1001, delivery) != event_id(1002, delivery));
}

TEST_CASE("when nothing names the event, its id makes no key") {
  const auto makes_key = [](const std::string& id) { return idem::Key::valid("t", "c", id); };
  const std::string missing;
  const std::string blank = " \t";
  CHECK_FALSE(makes_key(event_id("")));
  CHECK_FALSE(makes_key(event_id("", "", " ")));
  CHECK_FALSE(makes_key(event_id(missing, blank)));
  // The literal says what kind of event it is, not which one.
  CHECK_FALSE(makes_key(event_id("order-paid", missing)));
  CHECK_FALSE(makes_key(event_id("order-paid", blank, "v1")));
  CHECK(makes_key(event_id("order-paid", missing, 0)));
  CHECK(makes_key(event_id("order-paid", "")));
  CHECK(makes_key(event_id(std::string{"hook"}, missing)));
}

TEST_CASE("what no id may contain is left in it, for the key to refuse") {
  using namespace std::string_view_literals;
  CHECK_FALSE(idem::Key::valid("t", "c", event_id("k\0one"sv, 1)));
  CHECK_FALSE(idem::Key::valid("t", "c", event_id(std::string(511, 'x'), 1)));
  CHECK_FALSE(idem::Key::valid("t", "c", event_id("\xFF"sv)));
}

template <class... Ts>
concept MakesId = requires(const Ts&... parts) {
  event_id(parts...);
};
static_assert(MakesId<std::string, int, std::int8_t, char[4]>);
static_assert(!MakesId<bool> && !MakesId<char> && !MakesId<double> && !MakesId<>);
