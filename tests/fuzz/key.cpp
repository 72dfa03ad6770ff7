// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <idem/detail/text.hpp>
#include <idem/event.hpp>
#include <idem/key.hpp>

#include "fuzz/demand.hpp"

using namespace idem;

/// The input is a tenant, a consumer and an event id, each ended by a NUL; the rest is the id's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input{reinterpret_cast<const char*>(data), size};
  const std::size_t one = input.find('\0');
  const std::string_view tenant = input.substr(0, one);
  const std::string_view rest = one == std::string_view::npos ? "" : input.substr(one + 1);
  const std::size_t two = rest.find('\0');
  const std::string_view consumer = rest.substr(0, two);
  const std::string_view id = two == std::string_view::npos ? "" : rest.substr(two + 1);

  const std::string shown = detail::escaped(input);
  demand(detail::valid_utf8(shown));
  demand(shown.find('\n') == std::string::npos && shown.find('\0') == std::string::npos);
  demand(detail::escaped(input, 64).size() <= 64 + 3);
  demand(detail::escaped(input, 64).size() >= 64 - 16 || detail::escaped(input, 64) == shown);

  const bool valid = Key::valid(tenant, consumer, id);
  try {
    const Key key{tenant, consumer, id};
    demand(valid);
    demand(key.tenant() == tenant && key.consumer() == consumer && key.event_id() == id);
    demand(detail::valid_utf8(key.to_string()));
  } catch (const InvalidKey& e) {
    demand(!valid);
    demand(detail::valid_utf8(e.what()));
  }
  // Parts that differ never give one id.
  if (!detail::blank(tenant) && !detail::blank(consumer)) {
    demand((event_id(std::string{tenant}, std::string{consumer}) ==
            event_id(std::string{consumer}, std::string{tenant})) == (tenant == consumer));
    demand(event_id(std::string{tenant} + std::string{consumer}) !=
           event_id(std::string{tenant}, std::string{consumer}));
  }
  return 0;
}
