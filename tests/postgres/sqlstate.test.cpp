// SPDX-License-Identifier: MIT
#include <idem/postgres/sqlstate.hpp>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"

using namespace idem;
using idem::postgres::rule_for;

namespace {

struct Expected {
  std::vector<std::string_view> states;
  ErrorClass in_transaction;
  ErrorClass at_commit;
  Fault fault = Fault::message;
  Retry retry = Retry::in_call;
};

}  // namespace

TEST_CASE("every SQLSTATE has the class that its phase gives it") {
  using enum ErrorClass;
  const std::vector<Expected> table{
      {{"40001", "40P01", "40000", "40002", "55P03", "55006", "57014", "CR000", "57P03", "25P02", "",
        "ZZ999"},
       transient,
       transient},
      {{"08000", "08001", "08003", "08004", "08006"}, reconnect, in_doubt, Fault::store},
      {{"08P01"}, permanent, permanent},
      {{"08007", "40003"}, in_doubt, in_doubt, Fault::store},
      {{"57P01", "57P02", "57P05", "25P03"}, reconnect, in_doubt, Fault::store},
      {{"53000", "53100", "53200", "53300", "53400"}, transient, transient, Fault::store},
      {{"58000", "58030"}, transient, in_doubt, Fault::store},
      {{"25006"}, reconnect, reconnect, Fault::store},
      {{"23505", "23P01", "23503", "23502", "23514"}, permanent, permanent},
      {{"42P01", "3F000", "42501", "42883", "42703"},
       transient,
       permanent,
       Fault::message,
       Retry::by_redelivery},
      {{"21000", "22012", "22P02", "2200N", "42601", "42P07", "0A000", "2BP01", "26000", "34000", "3B001",
        "54000", "P0001", "P0002", "55000", "XX000", "25001", "28000", "3D000", "2D000", "0A999"},
       permanent,
       permanent},
  };
  for (const auto& row : table)
    for (const auto state : row.states) {
      CAPTURE(state);
      const auto& rule = rule_for(state);
      CHECK(rule.in_transaction == row.in_transaction);
      CHECK(rule.at_commit == row.at_commit);
      CHECK(rule.fault == row.fault);
      CHECK(rule.retry == row.retry);
    }
}

TEST_CASE("a row of the table is found by its own prefix, and there is one for each") {
  std::set<std::string_view> seen;
  for (const auto& rule : postgres::state_rules) {
    CAPTURE(rule.prefix);
    CHECK(seen.insert(rule.prefix).second);
    CHECK((rule.prefix.size() == 2 || rule.prefix.size() == 5));
    CHECK(&rule_for(rule.prefix) == &rule);
    CHECK(&rule_for(std::string{rule.prefix} + std::string(5 - rule.prefix.size(), '~')) == &rule);
  }
}

TEST_CASE("what may never be the message's fault is never permanent") {
  for (const auto& rule : postgres::state_rules)
    if (rule.fault == Fault::store) {
      CAPTURE(rule.prefix);
      CHECK(rule.in_transaction != ErrorClass::permanent);
      CHECK(rule.at_commit != ErrorClass::permanent);
    }
}

TEST_CASE("the states that refuse a key, and those that refuse the set-up") {
  for (const auto* state : {"22021", "22P02", "22P05", "23514", "54000"})
    CHECK(postgres::refuses_the_key(state));
  for (const auto* state : {"22012", "23505", "54001", "", "2202", "22021x"})
    CHECK_FALSE(postgres::refuses_the_key(state));
  for (const auto* state :
       {"42P01", "3F000", "42501", "42703", "42883", "3D000", "28000", "28P01", "0A000", "23502"})
    CHECK(postgres::is_configuration(state));
  for (const auto* state : {"40001", "55P03", "57P01", "08006", "53300", "25006", "", "4"})
    CHECK_FALSE(postgres::is_configuration(state));
}
