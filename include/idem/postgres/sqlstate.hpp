// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <idem/error.hpp>
#include <idem/store.hpp>

namespace idem::postgres {

/// Overrides of the table below: a five-character SQLSTATE and the class it shall have.
using Reclassify = std::map<std::string, ErrorClass, std::less<>>;

/// What a SQLSTATE means for the attempt that met it, in the transaction and as the answer to COMMIT.
struct StateRule {
  std::string_view prefix;
  ErrorClass in_transaction;
  ErrorClass at_commit;
  Fault fault = Fault::message;
  Retry retry = Retry::in_call;
};

/// The longest prefix counts. Codes: PostgreSQL documentation, appendix A.
///
/// A COMMIT answered by the loss of the session, or by an I/O error, may have taken effect: in doubt. A
/// missing table, column, function or right in the handler's own SQL is often a deploy in progress: left to
/// redelivery.
inline constexpr std::array<StateRule, 44> state_rules{{
    {"08", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"08007", ErrorClass::in_doubt, ErrorClass::in_doubt, Fault::store},
    {"08P01", ErrorClass::permanent, ErrorClass::permanent},
    {"0A", ErrorClass::permanent, ErrorClass::permanent},
    {"20", ErrorClass::permanent, ErrorClass::permanent},
    {"21", ErrorClass::permanent, ErrorClass::permanent},
    {"22", ErrorClass::permanent, ErrorClass::permanent},
    {"23", ErrorClass::permanent, ErrorClass::permanent},
    {"24", ErrorClass::permanent, ErrorClass::permanent},
    {"25", ErrorClass::permanent, ErrorClass::permanent},
    {"25006", ErrorClass::reconnect, ErrorClass::reconnect, Fault::store},
    {"25P02", ErrorClass::transient, ErrorClass::transient},
    {"25P03", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"25P04", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"26", ErrorClass::permanent, ErrorClass::permanent},
    {"27", ErrorClass::permanent, ErrorClass::permanent},
    {"28", ErrorClass::permanent, ErrorClass::permanent},
    {"2B", ErrorClass::permanent, ErrorClass::permanent},
    {"2D", ErrorClass::permanent, ErrorClass::permanent},
    {"2F", ErrorClass::permanent, ErrorClass::permanent},
    {"34", ErrorClass::permanent, ErrorClass::permanent},
    {"38", ErrorClass::permanent, ErrorClass::permanent},
    {"39", ErrorClass::permanent, ErrorClass::permanent},
    {"3B", ErrorClass::permanent, ErrorClass::permanent},
    {"3D", ErrorClass::permanent, ErrorClass::permanent},
    {"3F", ErrorClass::permanent, ErrorClass::permanent},
    {"3F000", ErrorClass::transient, ErrorClass::permanent, Fault::message, Retry::by_redelivery},
    {"40003", ErrorClass::in_doubt, ErrorClass::in_doubt, Fault::store},
    {"42", ErrorClass::permanent, ErrorClass::permanent},
    {"42501", ErrorClass::transient, ErrorClass::permanent, Fault::message, Retry::by_redelivery},
    {"42703", ErrorClass::transient, ErrorClass::permanent, Fault::message, Retry::by_redelivery},
    {"42883", ErrorClass::transient, ErrorClass::permanent, Fault::message, Retry::by_redelivery},
    {"42P01", ErrorClass::transient, ErrorClass::permanent, Fault::message, Retry::by_redelivery},
    {"53", ErrorClass::transient, ErrorClass::transient, Fault::store},
    {"54", ErrorClass::permanent, ErrorClass::permanent},
    {"55", ErrorClass::permanent, ErrorClass::permanent},
    {"55006", ErrorClass::transient, ErrorClass::transient},
    {"55P03", ErrorClass::transient, ErrorClass::transient},
    {"57P01", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"57P02", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"57P05", ErrorClass::reconnect, ErrorClass::in_doubt, Fault::store},
    {"58", ErrorClass::transient, ErrorClass::in_doubt, Fault::store},
    {"P0", ErrorClass::permanent, ErrorClass::permanent},
    {"XX", ErrorClass::permanent, ErrorClass::permanent},
}};

/// What holds for every state the table does not name: 40001 and 40P01 among them.
inline constexpr StateRule unnamed_state{"", ErrorClass::transient, ErrorClass::transient};

/// The rule for a SQLSTATE.
[[nodiscard]] constexpr const StateRule& rule_for(std::string_view sqlstate) noexcept {
  const StateRule* best = &unnamed_state;
  for (const StateRule& rule : state_rules)
    if (sqlstate.substr(0, rule.prefix.size()) == rule.prefix && rule.prefix.size() > best->prefix.size())
      best = &rule;
  return *best;
}

/// Whether the server refused the key itself, when our own claim met this state.
[[nodiscard]] constexpr bool refuses_the_key(std::string_view sqlstate) noexcept {
  return sqlstate == "22021" || sqlstate == "22P02" || sqlstate == "22P05" || sqlstate == "23514" ||
         sqlstate == "54000";
}

/// Whether our own statement met something that no message can mend: the schema, a right, the server's kind.
[[nodiscard]] constexpr bool is_configuration(std::string_view sqlstate) noexcept {
  const std::string_view kind = sqlstate.substr(0, 2);
  return kind == "42" || kind == "3F" || kind == "3D" || kind == "28" || kind == "0A" || kind == "23";
}

}  // namespace idem::postgres
