// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include <idem/fingerprint.hpp>
#include <idem/postgres/detail/sql_text.hpp>
#include <idem/postgres/sqlstate.hpp>

#include "fuzz/demand.hpp"

using namespace idem;

/// What a row may hold that somebody damaged, and what a server may answer that nobody expects.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto bytes = std::as_bytes(std::span{data, size});

  const Fingerprint print = Fingerprint::from_bytes(bytes);
  demand(!print.given() || print.to_bytes().size() == size);
  demand(Fingerprint::from_bytes(print.to_bytes()) == print);

  const std::string state{text.substr(0, 5)};
  const postgres::StateRule& rule = postgres::rule_for(text);
  demand(text.substr(0, rule.prefix.size()) == rule.prefix);
  demand(postgres::rule_for(state).prefix == rule.prefix);
  static_cast<void>(postgres::refuses_the_key(text));
  static_cast<void>(postgres::is_configuration(text));

  try {
    static_cast<void>(postgres::detail::bytes_of_hex(text));
  } catch (const std::exception&) {
  }
  try {
    static_cast<void>(postgres::detail::token_of(text));
  } catch (const std::exception&) {
  }
  return 0;
}
