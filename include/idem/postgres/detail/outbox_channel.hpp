// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include <idem/postgres/detail/prepared_texts.hpp>

namespace idem::postgres::detail {

/// The channel on which a commit tells that messages wait in a schema's outbox: ASCII, at most 63 bytes. A
/// hint: two schemas that share one only look in vain.
[[nodiscard]] inline std::string outbox_channel(std::string_view schema) {
  constexpr std::string_view prefix = "idem_outbox_";
  constexpr std::size_t longest = 63;
  const bool ascii =
      std::all_of(schema.begin(), schema.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii && prefix.size() + schema.size() <= longest) return std::string{prefix}.append(schema);
  return name_of("outbox", schema);
}

}  // namespace idem::postgres::detail
