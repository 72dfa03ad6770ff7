// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/rand.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <idem/detail/text.hpp>
#include <idem/key.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/session.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/sqlstate.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// The rule for a state met in the transaction, the caller's overrides first.
[[nodiscard]] inline StateRule rule_in(const PostgresOptions& options, std::string_view sqlstate) {
  StateRule rule = rule_for(sqlstate);
  if (const auto given = options.reclassify.find(sqlstate); given != options.reclassify.end())
    rule = {sqlstate, given->second, given->second};
  return rule;
}

[[nodiscard]] inline ErrorClass class_at_commit(const PostgresOptions& options, std::string_view sqlstate) {
  return rule_in(options, sqlstate).at_commit;
}

/// A failed statement of the handler. `sqlstate`: the one that tells the class, where an earlier one is
/// hidden.
[[nodiscard]] inline Failed failed_in_transaction(const PostgresOptions& options, const DriverError& error,
                                                  std::string_view sqlstate) {
  if (error.connection_lost)
    return {.failure = {ErrorClass::reconnect, error.sqlstate.empty() ? "08006" : error.sqlstate,
                        "the connection was lost before COMMIT: " + error.message},
            .fault = Fault::store};
  const StateRule rule = rule_in(options, sqlstate);
  // No COMMIT of ours was sent: whatever was in doubt, our effect is not there.
  const ErrorClass kind =
      rule.in_transaction == ErrorClass::in_doubt ? ErrorClass::reconnect : rule.in_transaction;
  return {.failure = {kind, std::string{sqlstate}, error.message}, .fault = rule.fault, .retry = rule.retry};
}

/// A COMMIT that the server answered with an error: nothing was stored.
[[nodiscard]] inline Failed failed_at_commit(const PostgresOptions& options, const DriverError& error) {
  const StateRule rule = rule_in(options, error.sqlstate);
  return {
      .failure = {rule.at_commit, error.sqlstate, error.message}, .fault = rule.fault, .retry = rule.retry};
}

/// What to do about an error that our own statement met.
[[nodiscard]] inline std::string explain_configuration(std::string_view schema, const DriverError& error) {
  const std::string& state = error.sqlstate;
  std::string_view way_out = "compare the schema with the one that create_schema() makes";
  if (state == "42P01" || state == "3F000")
    way_out = "run create_schema(), or have a DBA run the SQL that schema_sql() prints";
  if (state == "42501")
    way_out =
        "grant this process's role what the SQL of idem::postgres::roles_sql() gives (USAGE on the schema and on the sequence fences included), or mend the row security policy";
  if (state == "25006")
    way_out = "default_transaction_read_only is on for this role or database: a worker writes";
  return fmt::format("the schema \"{}\" cannot be used (SQLSTATE {}): {}; {}", idem::detail::escaped(schema),
                     state, error.message, way_out);
}

/// What an error of a statement of our own means.
enum class Trouble {
  busy,        ///< another transaction held the key for the whole wait
  contended,   ///< a lost race of a stricter isolation level, or a deadlock: try again
  dead,        ///< the connection is gone, or leads to a server that cannot write
  unprepared,  ///< our prepared statements are not known to the server session
  failed       ///< see `failed_statement`
};

/// Throws: ConfigurationError — no message can be handled until the set-up is mended.
[[nodiscard]] inline Trouble trouble_of(const PostgresOptions& options, const DriverError& error,
                                        const Session& session) {
  const std::string& state = error.sqlstate;
  if (error.connection_lost) return Trouble::dead;
  if (state == "55P03" || state == "57014") return Trouble::busy;
  if (state == "40001" || state == "40P01") return Trouble::contended;
  if (state == "26000" || state == "42P05") return Trouble::unprepared;
  if (refuses_the_key(state)) return Trouble::failed;
  if (is_configuration(state) || (state == "25006" && session.read_only_by_default))
    throw ConfigurationError{explain_configuration(options.schema, error)};
  return rule_for(state).in_transaction == ErrorClass::reconnect ? Trouble::dead : Trouble::failed;
}

/// The failure of a statement of our own: the key's, where the server refuses it, else the store's.
[[nodiscard]] inline Failed failed_statement(const DriverError& error) {
  if (refuses_the_key(error.sqlstate))
    return {.failure = {
                ErrorClass::permanent, std::string{code::invalid_key},
                fmt::format("the server refuses the key (SQLSTATE {}): {}", error.sqlstate, error.message)}};
  return {.failure = {ErrorClass::transient, error.sqlstate, error.message}, .fault = Fault::store};
}

[[nodiscard]] inline Failed failed_connection(std::string_view sqlstate, std::string_view what) {
  return {.failure = {ErrorClass::reconnect, std::string{sqlstate}, std::string{what}},
          .fault = Fault::store};
}

[[nodiscard]] inline Failed lost_races() {
  return {.failure = {ErrorClass::transient, "40001", "the claim lost its race for the key again and again"},
          .fault = Fault::store};
}

[[nodiscard]] inline Failed no_connection(std::size_t limit) {
  return {
      .failure =
          {ErrorClass::transient, "53300",
           fmt::format(
               "all {} connections of the store are at work; raise max_connections, or run fewer calls at once (a handler that calls a consumer holds two)",
               limit)},
      .fault = Fault::store};
}

/// How often a race with others is run again before the call gives up.
inline constexpr int patience = 5;

/// A key that can neither be inserted nor seen.
[[nodiscard]] inline std::string explain_hidden_row(std::string_view schema, const Key& key) {
  return fmt::format(
      "the key {} is taken by a row that this role cannot see in schema \"{}\": row security hides it; make the policy agree with the event's tenant (see PostgresOptions::tenant_setting)",
      key.to_string(), idem::detail::escaped(schema));
}

/// Unpredictable in every process and after every fork. Throws: std::runtime_error — libcrypto has no
/// entropy.
[[nodiscard]] inline ClaimToken random_token() {
  ClaimToken token;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.bytes.data()),
                 static_cast<int>(token.bytes.size())) != 1)
    throw std::runtime_error{"libcrypto gives no random bytes: RAND_bytes failed"};
  return token;
}

}  // namespace idem::postgres::detail
