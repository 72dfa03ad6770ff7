// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <idem/codec.hpp>

#include "fuzz/demand.hpp"

using namespace idem;

/// What is decoded comes back from its own encoding; what cannot be throws what the codec says.
template <class R>
static void round(std::string_view stored) {
  try {
    const R value = Codec<R>::decode(stored);
    demand(Codec<R>::decode(Codec<R>::encode(value)) == value);
  } catch (const std::invalid_argument&) {
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view stored{reinterpret_cast<const char*>(data), size};
  round<std::string>(stored);
  round<std::vector<std::byte>>(stored);
  round<bool>(stored);
  round<std::int8_t>(stored);
  round<std::uint8_t>(stored);
  round<std::int64_t>(stored);
  round<std::uint64_t>(stored);
  round<std::optional<std::int32_t>>(stored);
  round<std::optional<std::optional<std::string>>>(stored);
  round<std::optional<std::vector<std::byte>>>(stored);
  demand(Codec<std::string>::encode(Codec<std::string>::decode(stored)) == stored);
  return 0;
}
