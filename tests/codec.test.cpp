// SPDX-License-Identifier: MIT
#include <idem/codec.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using idem::Codec;

namespace app {
struct Receipt {
  std::string id;
  friend bool operator==(const Receipt&, const Receipt&) = default;
};
struct Unknown {};
}  // namespace app

template <>
struct idem::Codec<app::Receipt> {
  static std::string encode(const app::Receipt& receipt) { return "r1:" + receipt.id; }
  static app::Receipt decode(std::string_view stored) {
    if (!stored.starts_with("r1:")) throw std::invalid_argument{"not a receipt"};
    return {std::string{stored.substr(3)}};
  }
};

static_assert(idem::Encodable<std::string>);
static_assert(idem::Encodable<std::optional<std::vector<std::byte>>>);
static_assert(idem::Encodable<app::Receipt> && idem::Encodable<std::optional<app::Receipt>>);
static_assert(!idem::Encodable<app::Unknown> && !idem::Encodable<std::optional<app::Unknown>>);
static_assert(!idem::Encodable<double> && !idem::Encodable<char> && !idem::Encodable<const char*>);

namespace {

template <class R>
bool replays(const R& value) {
  return Codec<R>::decode(Codec<R>::encode(value)) == value;
}

template <class R>
bool refuses(std::string_view stored) {
  try {
    (void)Codec<R>::decode(stored);
    return false;
  } catch (const std::invalid_argument&) {
    return true;
  }
}

}  // namespace

TEST_CASE("values that look like nothing replay as what they were") {
  CHECK(replays(std::string{}));
  CHECK(replays(0));
  CHECK(replays(false));
  CHECK(replays(std::vector<std::byte>{}));
  CHECK(replays(std::optional<std::string>{}));
  CHECK(replays(std::optional<std::string>{""}));
  CHECK(replays(std::optional<int>{0}));
  CHECK(replays(std::optional<bool>{false}));
  CHECK(replays(std::optional<std::vector<std::byte>>{std::vector<std::byte>{}}));
  using Twice = std::optional<std::optional<int>>;
  CHECK(replays(Twice{}));
  CHECK(replays(Twice{std::optional<int>{}}));
  CHECK_FALSE(Codec<Twice>::decode(Codec<Twice>::encode(Twice{std::optional<int>{}})) == Twice{});
}

TEST_CASE("text and bytes replay byte for byte") {
  std::string every_char;
  std::vector<std::byte> every_byte;
  for (int i = 0; i < 256; ++i) {
    every_char += static_cast<char>(i);
    every_byte.push_back(static_cast<std::byte>(i));
  }
  CHECK(replays(every_char));
  CHECK(replays(every_byte));
  CHECK(Codec<std::vector<std::byte>>::encode(every_byte) == every_char);
}

TEST_CASE("integers replay over their whole range") {
  CHECK(replays(std::numeric_limits<std::int64_t>::min()));
  CHECK(replays(std::numeric_limits<std::int64_t>::max()));
  CHECK(replays(std::numeric_limits<std::uint64_t>::max()));
  CHECK(replays(std::int8_t{-128}));
  CHECK(replays(std::uint8_t{255}));
  CHECK(replays(true));
}

TEST_CASE("stored values outlive a deployment: their format stays as it is") {
  CHECK(Codec<std::string>::encode("receipt-1") == "receipt-1");
  CHECK(Codec<int>::encode(-17) == "-17");
  CHECK(Codec<bool>::encode(true) == "true");
  CHECK(Codec<bool>::encode(false) == "false");
  CHECK(Codec<std::optional<int>>::encode(5) == "=5");
  CHECK(Codec<std::optional<int>>::encode(std::nullopt).empty());
  CHECK(Codec<std::optional<std::string>>::encode("") == "=");
}

TEST_CASE("an integer may grow wider between deployments") {
  CHECK(Codec<std::int64_t>::decode(Codec<std::int16_t>::encode(-300)) == -300);
}

TEST_CASE("stored text that is damaged is refused, and not quoted") {
  for (const char* const bad : {"", " 1", "1 ", "1x", "+1", "0x1", "1.0", "--1", "2147483648"}) {
    INFO(bad);
    CHECK(refuses<std::int32_t>(bad));
  }
  CHECK(refuses<std::uint8_t>("-1"));
  CHECK(refuses<std::uint8_t>("256"));
  for (const char* const bad : {"", "1", "0", "TRUE", "true "}) CHECK(refuses<bool>(bad));
  CHECK(refuses<std::optional<int>>("5"));
  CHECK(refuses<std::optional<int>>("="));
  CHECK(refuses<std::optional<int>>("=x"));
  try {
    (void)Codec<int>::decode("hunter2");
    FAIL("accepted");
  } catch (const std::invalid_argument& error) {
    CHECK(std::string{error.what()}.find("hunter2") == std::string::npos);
  }
}

TEST_CASE("a type of the user's replays through the codec written for it") {
  CHECK(replays(app::Receipt{"17"}));
  CHECK(replays(std::optional<app::Receipt>{app::Receipt{""}}));
  CHECK(refuses<app::Receipt>("17"));
}
