// SPDX-License-Identifier: MIT
#include <idem/fingerprint.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using idem::exact;
using idem::Fingerprint;
using idem::fingerprint_bytes;
using idem::fingerprint_of;
using idem::FingerprintScheme;
using idem::Revision;
using namespace std::chrono_literals;
using namespace std::string_view_literals;

namespace {
enum class Currency { eur, usd };
enum class Side : char { buy = 'B' };
enum class Switch : bool { off, on };
enum class Low : std::int8_t { minus = -1 };
constexpr auto system_time(auto since_epoch) {
  return std::chrono::time_point<std::chrono::system_clock, decltype(since_epoch)>{since_epoch};
}
}  // namespace

TEST_CASE("fingerprints of fields are stored: their hash stays as it is") {
  // Computed by another program from the encoding described in field_hash.hpp.
  CHECK(fingerprint_of("order-17", 500, Currency::usd).to_hex() ==
        "86ae9dff210ca6b1c163732abb14a6b86eda48874ee72278d6d34b5dacbc2aa2");
  CHECK(fingerprint_of(0, -1, std::numeric_limits<std::uint64_t>::max(),
                       std::numeric_limits<std::int64_t>::min())
            .to_hex() == "13e94f6d555ec260aa98ea9ce95b6ced1968c95f14746145a2aede4b146d7433");
  CHECK(fingerprint_of(true, false).to_hex() ==
        "8541c2d149faea7b7e534fcd56f5d352c7ed5a620d81394c002a17f07e18a567");
  CHECK(fingerprint_of("gr\u00fcn", "").to_hex() ==
        "57faaa5026a5d0da84a34de61c74dd90edfa27f9059bc3154ac3de80e5f0c388");
  CHECK(fingerprint_of(std::array{std::byte{0}, std::byte{1}, std::byte{255}}).to_hex() ==
        "3cbe3c6ed46e373ba0864f3a708029d5f3dd1e582ea6c10a55dff3f29c689dd1");
  CHECK(fingerprint_of(std::nullopt).to_hex() ==
        "65c74c15a686187bb6bbf9958f494fc6b80068034a659a9ad44991b08c58f2d2");
  CHECK(fingerprint_of(1500ms).to_hex() ==
        "8cdd45b23f7ed13817d9d8903f7d7717ad2fa194efb5ea82d351d24a44cc21c0");
  CHECK(fingerprint_of(std::chrono::duration<std::int64_t, std::ratio<3600>>::max()).to_hex() ==
        "494baf35da97e76b4d50144baac2357eb4a43994091b96bf1526f1037e00bdff");
  CHECK(fingerprint_of(-1ns).to_hex() == "1f9bc1e94cbf07392c54f2b531291682fcd3114c98cf9ffc537cf3fa67020a0b");
  CHECK(fingerprint_of(system_time(1'700'000'000s)).to_hex() ==
        "14a9962ee6c87799127852055ac2aa59915c5a6f6e39ccd8349953cdb431f78e");
  CHECK(fingerprint_of(std::vector<std::vector<int>>{{1, 2}, {}}).to_hex() ==
        "037f8b2340c1be40945dc2983be4c6156fdb385590e9051ef8c479c2688fa2aa");
  CHECK(fingerprint_of(std::pair{"a", 1}).to_hex() ==
        "ff1f94d78c3963a5fb04ca124c4b03f4471d4f6e6abefa73896f568e1d60afb0");
  CHECK(fingerprint_of(exact(1.5), exact(-0.0), exact(-std::numeric_limits<float>::quiet_NaN())).to_hex() ==
        "96108eeaf7ee94899f142d1e247c3daaed6d20047a258e6873e2eecc5161b6d0");
  CHECK(fingerprint_of(std::optional<std::optional<int>>{std::optional<int>{}}).to_hex() ==
        "73d7886be321a7a8364afdef92292a5d3db2a249d451b43e71a0d52aeff5918c");
}

TEST_CASE("neighbouring fields never run together") {
  CHECK(fingerprint_of("ab", "c") != fingerprint_of("a", "bc"));
  CHECK(fingerprint_of("a", "") != fingerprint_of("a"));
  CHECK(fingerprint_of("", "a") != fingerprint_of("a", ""));
  CHECK(fingerprint_of(1, 2) != fingerprint_of(2, 1));
  CHECK(fingerprint_of(std::vector<int>{1}, 2) != fingerprint_of(std::vector<int>{1, 2}));
  CHECK(fingerprint_of(std::vector<int>{}, std::vector<int>{1}) !=
        fingerprint_of(std::vector<int>{1}, std::vector<int>{}));
  CHECK(fingerprint_of(std::vector<int>{1, 2}) != fingerprint_of(1, 2));
  CHECK(fingerprint_of(std::tuple{1, 2}) != fingerprint_of(std::vector<int>{1, 2}));
  CHECK(fingerprint_of("s"sv) != fingerprint_of(std::vector<std::string>{"s"}));
}

TEST_CASE("values of different kinds differ even where they look alike") {
  const std::vector<Fingerprint> all{
      fingerprint_of(1),
      fingerprint_of("1"),
      fingerprint_of(true),
      fingerprint_of(std::byte{1}),
      fingerprint_of("\x01"),
      fingerprint_of(1s),
      fingerprint_of(system_time(1s)),
      fingerprint_of(exact(1.0)),
      fingerprint_of(std::vector<int>{1}),
      fingerprint_of(std::tuple{1}),
      fingerprint_of(std::nullopt),
      fingerprint_of(""),
      fingerprint_of(0),
      fingerprint_of(false),
      fingerprint_of(std::vector<std::byte>{}),
      fingerprint_of(std::vector<int>{}),
      fingerprint_of(std::tuple<>{}),
      fingerprint_of(-1),
      fingerprint_of(std::numeric_limits<std::uint64_t>::max()),
  };
  CHECK(std::set<Fingerprint>(all.begin(), all.end()).size() == all.size());
}

TEST_CASE("integers count by value, whatever their width and sign") {
  const Fingerprint one = fingerprint_of(1);
  CHECK(one == fingerprint_of(std::int8_t{1}));
  CHECK(one == fingerprint_of(std::uint8_t{1}));
  CHECK(one == fingerprint_of(1UL));
  CHECK(one == fingerprint_of(1ULL));
  CHECK(one == fingerprint_of(std::int64_t{1}));
  CHECK(fingerprint_of(std::int8_t{-128}) == fingerprint_of(-128LL));
  CHECK(fingerprint_of(std::int8_t{-1}) != fingerprint_of(std::uint8_t{255}));
  CHECK(fingerprint_of(std::int64_t{-1}) != fingerprint_of(std::numeric_limits<std::uint64_t>::max()));
  CHECK(fingerprint_of(std::numeric_limits<std::int64_t>::min()) != fingerprint_of(std::uint64_t{1} << 63U));
}

TEST_CASE("an enum is its underlying value") {
  CHECK(fingerprint_of(Currency::usd) == fingerprint_of(1));
  CHECK(fingerprint_of(Side::buy) == fingerprint_of(66));
  CHECK(fingerprint_of(Switch::on) == fingerprint_of(1));
  CHECK(fingerprint_of(Low::minus) == fingerprint_of(-1));
}

TEST_CASE("every spelling of one text is one") {
  const Fingerprint text = fingerprint_of("x");
  const char* const pointer = "x";
  char array[8] = "x";
  char* const writable = array;
  CHECK(text == fingerprint_of(std::string{"x"}));
  CHECK(text == fingerprint_of("x"sv));
  CHECK(text == fingerprint_of(pointer));
  CHECK(text == fingerprint_of(writable));
  CHECK(text == fingerprint_of(array));
  CHECK(text == fingerprint_of('x'));
  CHECK(fingerprint_of("a\0b"sv) != fingerprint_of("a"));
}

TEST_CASE("a null pointer to text is absent") {
  const char* const none = nullptr;
  CHECK(fingerprint_of(none) == fingerprint_of(std::nullopt));
  CHECK(fingerprint_of(none) != fingerprint_of(""));
}

TEST_CASE("bytes are one, whatever holds them, and are not text") {
  const std::vector<std::byte> bytes{std::byte{'a'}, std::byte{'b'}};
  CHECK(fingerprint_of(bytes) == fingerprint_of(std::span<const std::byte>{bytes}));
  CHECK(fingerprint_of(bytes) == fingerprint_of(std::array{std::byte{'a'}, std::byte{'b'}}));
  CHECK(fingerprint_of(bytes) != fingerprint_of("ab"));
  CHECK(fingerprint_of(bytes) != fingerprint_of(std::vector<unsigned char>{'a', 'b'}));
}

TEST_CASE("an optional is its value, or absent") {
  CHECK(fingerprint_of(std::optional<int>{7}) == fingerprint_of(7));
  CHECK(fingerprint_of(std::optional<std::string>{"a"}) == fingerprint_of("a"));
  CHECK(fingerprint_of(std::optional<std::string>{}) != fingerprint_of(""));
  CHECK(fingerprint_of(std::optional<int>{}) != fingerprint_of(0));
  CHECK(fingerprint_of(1, std::nullopt) != fingerprint_of(1));
  CHECK(fingerprint_of(std::optional<int>{}) == fingerprint_of(std::optional<std::string>{}));
  using Twice = std::optional<std::optional<int>>;
  CHECK(fingerprint_of(Twice{}) != fingerprint_of(Twice{std::optional<int>{}}));
}

TEST_CASE("durations count by length, whatever their unit") {
  CHECK(fingerprint_of(1000ms) == fingerprint_of(1s));
  CHECK(fingerprint_of(60min) == fingerprint_of(1h));
  CHECK(fingerprint_of(0s) == fingerprint_of(0ns));
  CHECK(fingerprint_of(-1500ms) == fingerprint_of(-1'500'000us));
  CHECK(fingerprint_of(1s) != fingerprint_of(-1s));
  CHECK(fingerprint_of(std::chrono::duration<int, std::ratio<2, 3>>{3}) == fingerprint_of(2s));
  CHECK(fingerprint_of(std::chrono::duration<std::int8_t>{-128}) == fingerprint_of(-128s));
}

TEST_CASE("durations beyond what nanoseconds can hold still differ") {
  using Hours = std::chrono::duration<std::int64_t, std::ratio<3600>>;
  // Apart by 2^64 seconds, the same in 64 bits.
  constexpr std::int64_t wrap = std::int64_t{1} << 60U;
  CHECK(fingerprint_of(Hours{wrap}) != fingerprint_of(Hours{0}));
  CHECK(fingerprint_of(Hours::max()) != fingerprint_of(Hours::min()));
  CHECK(fingerprint_of(Hours{std::int64_t{1} << 50U}) ==
        fingerprint_of(std::chrono::duration<std::int64_t, std::ratio<60>>{(std::int64_t{1} << 50U) * 60}));
}

TEST_CASE("system times count by instant") {
  CHECK(fingerprint_of(system_time(1'700'000'000s)) == fingerprint_of(system_time(1'700'000'000'000ms)));
  CHECK(fingerprint_of(system_time(1s)) != fingerprint_of(system_time(2s)));
  CHECK(fingerprint_of(std::chrono::sys_days{std::chrono::days{1}}) == fingerprint_of(system_time(24h)));
}

TEST_CASE("ranges count in their order, whatever holds them") {
  const std::vector<int> numbers{1, 2, 3};
  CHECK(fingerprint_of(numbers) == fingerprint_of(std::list<long>{1, 2, 3}));
  CHECK(fingerprint_of(numbers) == fingerprint_of(std::array<std::uint8_t, 3>{1, 2, 3}));
  CHECK(fingerprint_of(numbers) == fingerprint_of(std::set<int>{3, 1, 2}));
  CHECK(fingerprint_of(numbers) != fingerprint_of(std::vector<int>{3, 2, 1}));
  CHECK(fingerprint_of(std::vector<bool>{true, false}) == fingerprint_of(std::array{true, false}));
  CHECK(fingerprint_of(std::map<std::string, int>{{"a", 1}}) ==
        fingerprint_of(std::vector<std::pair<const char*, long>>{{"a", 1}}));
  const std::string id = "line-1";
  CHECK(fingerprint_of(std::vector{std::tie(id)}) == fingerprint_of(std::vector{std::tuple{"line-1"}}));
}

TEST_CASE("exact floating-point values count by their bits") {
  CHECK(fingerprint_of(exact(1.5)) == fingerprint_of(exact(1.5F)));
  CHECK(fingerprint_of(exact(0.1)) != fingerprint_of(exact(0.1F)));
  CHECK(fingerprint_of(exact(0.0)) != fingerprint_of(exact(-0.0)));
  CHECK(fingerprint_of(exact(std::numeric_limits<double>::quiet_NaN())) ==
        fingerprint_of(exact(-std::numeric_limits<double>::signaling_NaN())));
  CHECK(fingerprint_of(exact(0.1 + 0.2)) != fingerprint_of(exact(0.3)));
}

TEST_CASE("a revision sets fingerprints apart without changing the hash") {
  const Fingerprint first = fingerprint_of(1);
  const Fingerprint second = fingerprint_of(Revision{2}, 1);
  CHECK(first != second);
  CHECK(first == fingerprint_of(Revision{1}, 1));
  CHECK(first.to_hex() == second.to_hex());
  CHECK(second.revision() == 2);
}

TEST_CASE("a revision is a number from 1 to 255") {
  CHECK(Revision{1}.number() == 1);
  CHECK(Revision{255}.number() == 255);
  for (const int bad : {0, -1, 256, 257, std::numeric_limits<int>::max()})
    CHECK_THROWS_AS(Revision{bad}, std::out_of_range);
}

TEST_CASE("a fingerprint that is not given compares with nothing") {
  const Fingerprint none;
  CHECK_FALSE(none.given());
  CHECK(none.to_hex().empty());
  CHECK(none == Fingerprint{});
  CHECK(none != fingerprint_of(1));
  CHECK_FALSE(comparable(none, none));
  CHECK_FALSE(comparable(none, fingerprint_of(1)));
  CHECK_FALSE(comparable(fingerprint_of(1), none));
  CHECK(Fingerprint{FingerprintScheme::none, Revision{1}, idem::Fingerprint::Digest{std::byte{1}}} == none);
}

TEST_CASE("only fingerprints of one scheme and revision compare") {
  CHECK(comparable(fingerprint_of(1), fingerprint_of(2)));
  CHECK_FALSE(comparable(fingerprint_of(1), fingerprint_of(Revision{2}, 1)));
  CHECK_FALSE(comparable(fingerprint_of("x"), fingerprint_bytes("x")));
}

TEST_CASE("raw bytes are hashed as they are") {
  CHECK(fingerprint_bytes("abc").to_hex() ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(fingerprint_bytes("").to_hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(fingerprint_bytes("abc") == fingerprint_bytes(std::as_bytes(std::span{"abc", 3})));
  CHECK(fingerprint_bytes("a\0b"sv) != fingerprint_bytes("a"));
  CHECK(fingerprint_bytes(R"({"a":1,"b":2})") != fingerprint_bytes(R"({"b":2,"a":1})"));
}

TEST_CASE("the stored form is scheme, revision and hash, and reads back as it was") {
  for (const Fingerprint& print : {fingerprint_of(Revision{255}, 1), fingerprint_bytes("x"), Fingerprint{}})
    CHECK(Fingerprint::from_bytes(print.to_bytes()) == print);
  const std::vector<std::byte> stored = fingerprint_of(Revision{2}, 1).to_bytes();
  REQUIRE(stored.size() == 34);
  CHECK(stored[0] == std::byte{1});
  CHECK(stored[1] == std::byte{2});
  CHECK(fingerprint_bytes("x").to_bytes()[0] == std::byte{2});
  CHECK(Fingerprint{}.to_bytes().empty());
}

TEST_CASE("stored bytes that are damaged or of an unknown scheme compare with nothing") {
  const std::vector<std::byte> good = fingerprint_of(1).to_bytes();
  const auto with = [&](std::size_t at, int value) {
    std::vector<std::byte> bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    return Fingerprint::from_bytes(bytes);
  };
  CHECK(with(0, 3).scheme() == FingerprintScheme::json);
  CHECK_FALSE(with(0, 0).given());
  CHECK_FALSE(with(0, 4).given());
  CHECK_FALSE(with(1, 0).given());
  for (std::size_t size = 0; size < good.size(); ++size)
    CHECK_FALSE(Fingerprint::from_bytes(std::span{good}.first(size)).given());
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(Fingerprint::from_bytes(longer).given());
}
