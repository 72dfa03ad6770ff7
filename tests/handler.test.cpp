// SPDX-License-Identifier: MIT
#include <idem/handler.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "support/catch.hpp"

namespace shop {

struct Order {
  std::string id;
};
struct Urgent : Order {};
struct Silent {};
struct Odd {};

idem::Event event_of(const Order& order) { return {.id = order.id}; }
int event_of(const Odd&) { return 0; }

}  // namespace shop

namespace {

using namespace idem;

static_assert(Identified<shop::Order>);
static_assert(Identified<shop::Urgent>);
static_assert(!Identified<shop::Silent>);
static_assert(!Identified<shop::Odd>);
static_assert(!Identified<int>);
static_assert(!Identified<std::string>);

struct Tx {
  void take(const shop::Order&) {}
};

template <class Handler>
constexpr bool fits = TransactionalHandler<Handler, Tx, shop::Order>;

struct ConstCall {
  void operator()(Tx&, const shop::Order&) const {}
};
struct Call {
  void operator()(Tx&, const shop::Order&) {}
};
static_assert(fits<ConstCall>);
static_assert(!fits<Call>);
static_assert((detail::form_of<Call, Tx, shop::Order>() == detail::HandlerForm::changes_itself));
static_assert((detail::form_of<ConstCall, Tx, shop::Order>() != detail::HandlerForm::changes_itself));

static_assert(fits<void (*)(Tx&, const shop::Order&)>);
static_assert(fits<int (*)(Tx&, const shop::Order&)>);
static_assert(fits<void (*)(Tx&, shop::Order)>);
static_assert(fits<void (*)(const Tx&, const shop::Order&)>);
static_assert(fits<void (Tx::*)(const shop::Order&)>);
static_assert(fits<std::function<void(Tx&, const shop::Order&)>>);
static_assert(!fits<void (*)(Tx&)>);
static_assert(!fits<void (*)(const shop::Order&)>);
static_assert(!fits<void (*)(const shop::Order&, Tx&)>);
static_assert(!fits<void (*)(Tx&, shop::Order&)>);  // a message is not the handler's to change
static_assert(!fits<void (*)(Tx&&, const shop::Order&)>);
static_assert(!fits<int>);

static_assert(std::is_same_v<detail::result_t<void>, std::monostate>);
static_assert(std::is_same_v<detail::result_t<int>, int>);
static_assert(std::is_same_v<detail::result_t<const std::string&>, std::string>);
static_assert(std::is_same_v<detail::result_t<const int>, int>);

}  // namespace

TEST_CASE("lambdas are handlers when they can be called as constants", "[handler]") {
  const auto plain = [](Tx&, const shop::Order&) {};
  const auto generic = [](auto&, const auto&) {};
  int n = 0;
  const auto changes_what_it_refers_to = [&n](Tx&, const shop::Order&) { ++n; };
  auto changes_itself = [m = 0](Tx&, const shop::Order&) mutable { ++m; };
  auto owns = [p = std::make_unique<int>(1)](Tx&, const shop::Order&) { return *p; };
  STATIC_REQUIRE(fits<decltype(plain)>);
  STATIC_REQUIRE(fits<decltype(generic)>);
  STATIC_REQUIRE(fits<decltype(changes_what_it_refers_to)>);
  STATIC_REQUIRE(fits<decltype(owns)>);
  STATIC_REQUIRE_FALSE(fits<decltype(changes_itself)>);
  STATIC_REQUIRE(
      (detail::form_of<decltype(changes_itself), Tx, shop::Order>() == detail::HandlerForm::changes_itself));
  CHECK(event_of(shop::Urgent{{"o-1"}}).id == "o-1");
}
