// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

#include <idem/detail/key_gate.hpp>
#include <idem/error.hpp>
#include <idem/postgres/detail/attempt.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/schema.hpp>
#include <idem/store.hpp>

namespace idem {

/// Keeps keys, and the effects of handlers, in a PostgreSQL database (13 or later).
///
/// Connects to nothing until it is used; holds at most `max_connections` connections, each used by one call
/// at a time. A connection goes back only after the server confirmed the end of its transaction.
///
/// Guarantee: a key and its effect are committed together or not at all, across a crash of this process or of
/// the server at any point.
/// Thread safety: any number of threads. It outlives the consumers that use it.
class PostgresStore {
 public:
  using Transaction = postgres::Transaction;

  /// `connection_string` as libpq reads it; what it leaves out comes from the environment (PGHOST, …).
  explicit PostgresStore(std::string connection_string, PostgresOptions options = {})
      : PostgresStore{postgres::detail::Connector{std::move(connection_string)}, std::move(options)} {}

  /// `factory` returns an open connection that nobody else uses, or throws.
  explicit PostgresStore(postgres::detail::ConnectionFactory factory, PostgresOptions options = {})
      : PostgresStore{postgres::detail::Connector{std::move(factory)}, std::move(options)} {}

  PostgresStore(const PostgresStore&) = delete;
  PostgresStore& operator=(const PostgresStore&) = delete;

  /// Makes the tables, or upgrades them. Safe to repeat, and for several processes at once; does nothing, and
  /// needs no right to create, where they are up to date.
  ///
  /// Throws: ConfigurationError — the server refuses; TransientError — it cannot be reached.
  void create_schema() {
    if (found_version() >= postgres::schema_version) return;
    with_session([&](pqxx::nontransaction& tx) { tx.exec(postgres::schema_sql(options_.schema)); });
  }

  /// Tells at start-up what would otherwise stop the first message.
  ///
  /// Throws: ConfigurationError — no connection can be had, or the schema is missing or older than this
  /// library.
  void check() {
    int found = 0;
    try {
      found = found_version();
    } catch (const TransientError& e) {
      throw ConfigurationError{fmt::format("PostgreSQL cannot be reached: {}", e.what())};
    }
    if (found >= postgres::schema_version) return;
    throw ConfigurationError{fmt::format(
        "the schema \"{}\" is {}; run create_schema(), or have a DBA run the SQL of idem::postgres::schema_sql()",
        idem::detail::escaped(options_.schema),
        found == 0
            ? std::string{"missing"}
            : fmt::format("of version {}, and this library needs {}", found, postgres::schema_version))};
  }

  /// See TransactionalStore.
  [[nodiscard]] Applied apply(const Claim& claim, Effect<Transaction> effect) {
    const auto now = std::chrono::steady_clock::now();
    const bool waits = claim.on_concurrent == Concurrent::wait;
    const auto deadline = now + claim.wait_limit;
    const auto pass = gate_.enter(claim.key, waits ? deadline : now, claim.stop);
    if (!pass) return Busy{};

    Troubles troubles;
    while (true) {
      auto loan = pool_.take(deadline, claim.stop);
      if (!loan) return no_connection();
      const bool from_pool = loan->from_pool() && !troubles.pooled_one_was_dead;
      try {
        if (!from_pool) loan->open(connector_);
      } catch (const postgres::detail::Unreachable& e) {
        return Failed{.failure = {ErrorClass::reconnect, "08001", e.what()}, .fault = Fault::store};
      }
      const auto left = waits ? deadline - std::chrono::steady_clock::now() : Duration{0};
      if (auto done = attempt(claim, effect, *loan, left, from_pool, troubles)) return *std::move(done);
    }
  }

 private:
  using Attempt = postgres::detail::Attempt;
  using Spelling = postgres::detail::Spelling;

  /// What has kept one call from an answer so far.
  struct Troubles {
    bool pooled_one_was_dead = false;
    int lost_races = 0;
    int vanished_rows = 0;
    Attempt::Taking next = Attempt::Taking::fresh;
  };
  static constexpr int patience = 5;

  PostgresStore(postgres::detail::Connector connector, PostgresOptions options)
      : options_{checked(std::move(options))},
        connector_{std::move(connector)},
        statements_{options_},
        pool_{options_.max_connections} {}

  /// nullopt: try again.
  [[nodiscard]] std::optional<Applied> attempt(const Claim& claim, Effect<Transaction>& effect,
                                               postgres::detail::Pool::Loan& loan, Duration wait,
                                               bool from_pool, Troubles& troubles) {
    using enum Attempt::Obstacle;
    std::optional<Applied> answer;
    bool clean = false;
    {
      Attempt one{*loan, statements_, options_, claim, spelling_.load(std::memory_order_relaxed)};
      const auto obstacle = one.open(wait, std::exchange(troubles.next, Attempt::Taking::fresh));
      if (!obstacle) {
        answer = one.run(effect);
      } else if (*obstacle == taken) {
        answer = found_by(one, claim, troubles);
      } else {
        if (*obstacle != dead) one.roll_back_claim();
        answer = answer_to(*obstacle, one, from_pool, troubles);
      }
      clean = one.clean();
    }
    if (clean) loan.give_back();
    return answer;
  }

  [[nodiscard]] std::optional<Applied> found_by(Attempt& one, const Claim& claim, Troubles& troubles) const {
    try {
      if (auto row = one.find()) {
        if (row->free) {
          if (++troubles.lost_races >= patience) return lost_races();
          troubles.next = Attempt::Taking::over;
          return std::nullopt;
        }
        if (row->lease) return *row->lease;
        return std::move(row->found);
      }
    } catch (const std::exception&) {
      const auto error = postgres::detail::current_driver_error();
      if (!error) throw;
      Failed failed = postgres::detail::failed_in_transaction(options_, *error, error->sqlstate);
      failed.fault = Fault::store;
      if (failed.failure.kind == ErrorClass::permanent) failed.failure.kind = ErrorClass::transient;
      return failed;
    }
    if (++troubles.vanished_rows < patience) return std::nullopt;
    throw ConfigurationError{postgres::detail::explain_hidden_row(options_.schema, claim.key)};
  }

  [[nodiscard]] std::optional<Applied> answer_to(Attempt::Obstacle obstacle, const Attempt& one,
                                                 bool from_pool, Troubles& troubles) {
    using enum Attempt::Obstacle;
    switch (obstacle) {
      case busy: return Busy{};
      case too_old: return BeyondWindow{};
      case failed: return one.failure();
      case unprepared: spelling_ = Spelling::in_full; return std::nullopt;
      case contended:
        if (++troubles.lost_races < patience) return std::nullopt;
        return Failed{.failure = {ErrorClass::transient, "40001",
                                  "the claim lost its race for the key again and again"},
                      .fault = Fault::store};
      case dead:
        if (from_pool) {
          troubles.pooled_one_was_dead = true;
          return std::nullopt;
        }
        break;
      case taken: break;
    }
    return Failed{
        .failure = {ErrorClass::reconnect, "08006", "the connection was lost while claiming the event"},
        .fault = Fault::store};
  }

  [[nodiscard]] static Failed lost_races() {
    return {
        .failure = {ErrorClass::transient, "40001", "the claim lost its race for the key again and again"},
        .fault = Fault::store};
  }

  [[nodiscard]] Failed no_connection() const {
    return {
        .failure =
            {ErrorClass::transient, "53300",
             fmt::format(
                 "all {} connections of the store are at work; raise max_connections, or run fewer calls at once (a handler that calls a consumer holds two)",
                 pool_.limit())},
        .fault = Fault::store};
  }

  /// 0: there is none.
  [[nodiscard]] int found_version() {
    int version = 0;
    with_session([&](pqxx::nontransaction& tx) {
      const std::string name = postgres::detail::literal(options_.schema);
      const auto table = tx.exec("SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = " + name +
                                 " AND tablename = 'schema_info'");
      if (table.empty()) return;
      const auto found =
          tx.exec("SELECT version FROM " + postgres::detail::identifier(options_.schema) + ".schema_info");
      if (!found.empty()) version = found[0][0].template as<int>();
    });
    return version;
  }

  /// A connection of its own: it comes before any message, and may run what a pooled one never should.
  template <class Work>
  void with_session(Work work) {
    try {
      const postgres::detail::Session session = connector_.open();
      pqxx::nontransaction tx{*session.connection};
      work(tx);
    } catch (const postgres::detail::Unreachable& e) {
      throw TransientError{e.what()};
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception&) {
      const auto error = postgres::detail::current_driver_error();
      if (!error) throw;
      if (error->connection_lost) throw TransientError{error->message};
      throw ConfigurationError{postgres::detail::explain_configuration(options_.schema, *error)};
    }
  }

  [[nodiscard]] static PostgresOptions checked(PostgresOptions options) {
    if (options.max_connections == 0)
      throw ConfigurationError{
          "PostgresOptions::max_connections is 0: a store needs at least one connection"};
    if (options.schema.empty() || options.schema.find('\0') != std::string::npos ||
        options.schema.size() > 63)
      throw ConfigurationError{
          fmt::format("PostgresOptions::schema \"{}\" is no schema name: 1 to 63 bytes, without NUL",
                      idem::detail::escaped(options.schema, 80))};
    return options;
  }

  PostgresOptions options_;
  postgres::detail::Connector connector_;
  postgres::detail::Statements statements_;
  postgres::detail::Pool pool_;
  idem::detail::KeyGate gate_;
  std::atomic<Spelling> spelling_{Spelling::prepared};
};

static_assert(TransactionalStore<PostgresStore>);

}  // namespace idem
