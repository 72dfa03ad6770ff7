// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <idem/detail/text.hpp>
#include <idem/json.hpp>

#include "fuzz/demand.hpp"

using namespace idem;

/// The fingerprint, or none: then it is no JSON, and the text says so without quoting it.
template <class... Selection>
static std::optional<Fingerprint> print_of(std::string_view text, const Selection&... selection) {
  try {
    return fingerprint_json(text, selection...);
  } catch (const std::invalid_argument& e) {
    demand(detail::valid_utf8(e.what()));
    return std::nullopt;
  }
}

/// The input is JSON; a first line that begins with `/` is a pointer into the rest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  std::string pointer = "/a";
  if (!text.empty() && text.front() == '/') {
    const std::size_t end = text.find('\n');
    pointer = text.substr(0, end);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  const auto print = print_of(text);
  demand(print == print_of(text));
  const bool marked =
      text.substr(0, 3) == "\xEF\xBB\xBF";  // a byte order mark counts at the very beginning only
  demand(marked || print == print_of(" \n" + std::string{text} + "\t"));
  static_cast<void>(print_of(text, JsonOnly{{pointer}}));
  static_cast<void>(print_of(text, JsonExcept{{pointer}}));
  static_cast<void>(print_of(text, JsonOnly{{pointer, "/b/0"}}));

  // Another parser agrees on what is JSON; numbers beyond a double are JSON, and it refuses them.
  bool is_json = true;
  try {
    static_cast<void>(nlohmann::json::parse(text));
  } catch (const nlohmann::json::parse_error&) {
    is_json = false;
  } catch (const nlohmann::json::out_of_range&) {
  }
  if (print) {
    demand(print->given());
    demand(is_json);
    const std::string array = "[" + std::string{text} + "]";
    demand(print_of(array) != print);
  }
  return 0;
}
