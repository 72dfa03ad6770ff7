// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/core.h>

#include <idem/detail/key_gate.hpp>
#include <idem/error.hpp>
#include <idem/postgres/detail/at_once.hpp>
#include <idem/postgres/detail/attempt.hpp>
#include <idem/postgres/detail/batch_attempt.hpp>
#include <idem/postgres/detail/counter.hpp>
#include <idem/postgres/detail/messenger.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/schema.hpp>
#include <idem/postgres/statement.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/store.hpp>

namespace idem {

namespace postgres::detail {
class Upkeep;
}

/// Keeps keys, and the effects of handlers, in a PostgreSQL database (13 or later).
///
/// Connects to nothing until it is used; holds at most `max_connections` connections, and one more where
/// starts are counted, each used by one call at a time. A connection goes back only after the server
/// confirmed the end of its transaction.
///
/// Guarantee: a key and its effect are committed together or not at all, across a crash of this process or of
/// the server at any point.
/// Thread safety: any number of threads. It outlives the consumers that use it.
class PostgresStore {
 public:
  using Transaction = postgres::Transaction;
  using Statements = postgres::Statements;

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
    if (auto found = look_first(claim)) return *std::move(found);
    const auto now = std::chrono::steady_clock::now();
    const bool waits = claim.on_concurrent == Concurrent::wait;
    const auto deadline = idem::detail::saturating_add(now, claim.wait_limit);
    const auto pass = gate_.enter(claim.key, waits ? deadline : now, claim.stop);
    if (!pass) return Busy{};

    Troubles troubles;
    while (true) {
      auto loan = pool_.take(deadline, claim.stop);
      if (!loan) return postgres::detail::no_connection(pool_.limit());
      const bool from_pool = loan->from_pool() && !troubles.pooled_one_was_dead;
      try {
        if (!from_pool) loan->open(connector_);
      } catch (const postgres::detail::Unreachable& e) {
        return postgres::detail::failed_connection("08001", e.what());
      }
      const auto left = waits ? deadline - std::chrono::steady_clock::now() : Duration{0};
      if (auto done = attempt(claim, effect, *loan, left, from_pool, troubles)) return *std::move(done);
    }
  }

  /// See StatementStore. The usual way is taken for keys with a window, behind a transaction pooler, and where
  /// another delivery is at work for more than a moment.
  [[nodiscard]] std::optional<Applied> apply_at_once(const Claim& claim, const Statements& effect) {
    using postgres::detail::AtOnce;
    if (claim.window || spelling_.load(std::memory_order_relaxed) == Spelling::in_full) return std::nullopt;
    if (auto found = look_first(claim)) return found;
    const auto now = std::chrono::steady_clock::now();
    const auto wait =
        claim.on_concurrent == Concurrent::wait ? (std::min)(claim.wait_limit, at_once_wait) : Duration{0};
    const auto deadline = idem::detail::saturating_add(now, wait);
    const auto pass = gate_.enter(claim.key, deadline, claim.stop);
    if (!pass) return std::nullopt;
    auto loan = pool_.take(deadline, claim.stop);
    if (!loan) return std::nullopt;
    try {
      if (!loan->from_pool()) loan->open(connector_);
    } catch (const postgres::detail::Unreachable&) {
      return std::nullopt;
    }
    auto met = at_once_.run(claim, effect, wait, *loan);
    if (auto* answer = std::get_if<Applied>(&met)) return std::move(*answer);
    if (std::get<AtOnce::UsualWay>(met).unprepared()) spelling_ = Spelling::in_full;
    return std::nullopt;
  }

  /// See BatchStore. With `tenant_setting`, only events of one tenant share a transaction.
  [[nodiscard]] BatchApplied apply_batch(std::span<const Claim> claims, BatchEffect<Transaction> effect) {
    return postgres::detail::BatchAttempt{statements_, options_, connector_, pool_,
                                          spelling_.load(std::memory_order_relaxed)}
        .run(claims, effect);
  }

  /// See LeaseStore. Each verb is a message of its own; a key that is new is acquired with one.
  [[nodiscard]] Acquired acquire(const Claim& claim, std::optional<Duration> lease) {
    const ClaimToken token = claim.doubted ? *claim.doubted : postgres::detail::random_token();
    bool new_key =
        claim.delivered == Delivered::first;  // else a row is likely, and answered by the first message
    for (int round = 0; round < 2 * postgres::detail::patience; ++round, new_key = !new_key) {
      const auto answer =
          messenger_.ask(new_key ? statements_.acquire(claim, token, lease, claim.wait_limit)
                                 : statements_.acquire_free(claim, token, lease, claim.wait_limit),
                         claim.wait_limit, claim.stop);
      if (std::holds_alternative<Busy>(answer)) return Leased{claim.wait_limit};
      if (const auto* failed = std::get_if<Failed>(&answer)) {
        if (postgres::detail::may_be_done(*failed)) return InDoubt{token, failed->failure};
        return *failed;
      }
      const auto& rows = std::get<pqxx::result>(answer);
      if (new_key) {
        if (!rows.empty()) return Grant{token, rows[0][0].as<std::uint64_t>()};
      } else if (auto met = acquired(rows, token)) {
        return *std::move(met);
      }
    }
    throw ConfigurationError{postgres::detail::explain_hidden_row(options_.schema, claim.key)};
  }
  [[nodiscard]] Held extend(const Claim& claim, const Grant& grant, Duration length) {
    return messenger_.tell(statements_.extend(claim, grant, length), claim.wait_limit);
  }
  [[nodiscard]] Held complete(const Claim& claim, const Grant& grant, const StoredValue& value) {
    return messenger_.tell(statements_.complete(claim, grant, value), claim.wait_limit);
  }
  [[nodiscard]] Held release(const Claim& claim, const Grant& grant) {
    return messenger_.tell(statements_.release(claim, grant), claim.wait_limit);
  }

  /// See CountingStore.
  [[nodiscard]] Started start(const Claim& claim) { return counter_.start(claim); }
  [[nodiscard]] Held end(const Claim& claim, const Start& start, StartEnd how) {
    return counter_.end(claim, start, how);
  }

 private:
  friend postgres::detail::Upkeep;

  using Attempt = postgres::detail::Attempt;
  using Spelling = postgres::detail::Spelling;
  using Trouble = postgres::detail::Trouble;

  /// What has kept one call from an answer so far.
  struct Troubles {
    bool pooled_one_was_dead = false;
    bool planned_anew = false;
    int lost_races = 0;
    int vanished_rows = 0;
    bool take_over = false;  ///< the row was found free
  };
  PostgresStore(postgres::detail::Connector connector, PostgresOptions options)
      : options_{checked(std::move(options))},
        connector_{std::move(connector)},
        statements_{options_},
        pool_{options_.max_connections},
        messenger_{pool_, connector_, options_},
        counter_{statements_, connector_, options_},
        at_once_{statements_, options_} {}

  /// How long a message that does everything waits for another holder of its key: it is told from the effect's
  /// own waits only by taking the usual way.
  static constexpr Duration at_once_wait = std::chrono::milliseconds{100};

  /// A committed row, or another's lease, that a plain look finds; whatever else there is, the claim finds out.
  [[nodiscard]] std::optional<Applied> look_first(const Claim& claim) {
    if (claim.delivered == Delivered::first || claim.doubted) return std::nullopt;
    auto loan = pool_.take(idem::detail::saturating_add(std::chrono::steady_clock::now(), claim.wait_limit),
                           claim.stop);
    if (!loan) return std::nullopt;
    const auto spelling = spelling_.load(std::memory_order_relaxed);
    std::optional<Applied> answer;
    try {
      if (!loan->from_pool()) loan->open(connector_);
      pqxx::nontransaction tx{*(*loan)->connection};
      if (spelling == Spelling::prepared && !std::exchange((*loan)->prepared, true))
        tx.exec(statements_.prepare());
      answer = postgres::detail::answer_of(tx.exec(statements_.look(claim.key, spelling)));
    } catch (const postgres::detail::Unreachable&) {
      return std::nullopt;
    } catch (const ConfigurationError&) {
      throw;
    } catch (const std::exception&) {  // the claim meets it again, and says what it means
      const auto error = postgres::detail::current_driver_error();
      if (!error) throw;
      return std::nullopt;
    }
    loan->give_back();
    return answer;
  }

  /// nullopt: try again.
  [[nodiscard]] std::optional<Applied> attempt(const Claim& claim, Effect<Transaction>& effect,
                                               postgres::detail::Pool::Loan& loan, Duration wait,
                                               bool from_pool, Troubles& troubles) {
    std::optional<Applied> answer;
    bool clean = false;
    {
      Attempt one{*loan, statements_, options_, spelling_.load(std::memory_order_relaxed)};
      const ClaimToken token = postgres::detail::random_token();
      const auto opened = one.open(std::exchange(troubles.take_over, false)
                                       ? statements_.take_over(claim, token, wait, *loan)
                                       : statements_.claim(claim, token, wait, *loan, one.spelling()));
      if (const auto* trouble = std::get_if<Trouble>(&opened)) {
        if (*trouble != Trouble::dead) one.roll_back_claim();
        answer = answer_to(*trouble, one, from_pool, troubles);
      } else if (const auto& claimed = std::get<pqxx::result>(opened); claimed.empty()) {
        answer = found_by(one, claim, troubles);
      } else if (claimed.columns() > 2 && std::string_view{claimed[0][2].c_str()} == "t") {
        one.roll_back_claim();
        answer = BeyondWindow{};
      } else {
        answer = one.run(token, [&](Transaction& tx) {
          tx.working_on(claim.key);
          return statements_.commit(one.xid(), claim.key, effect(tx), one.spelling());
        });
        if (one.unprepared()) spelling_ = Spelling::in_full;
        if (auto* failed = std::get_if<Failed>(&*answer)) {
          failed->token = token;
          const bool ended_by_handler = failed->failure.code == code::transaction_ended_by_handler;
          if (one.stale_plan() && !ended_by_handler && !std::exchange(troubles.planned_anew, true))
            return std::nullopt;  // and the session, which knows the plan, is closed
        }
      }
      clean = one.clean();
    }
    if (clean) loan.give_back();
    return answer;
  }

  [[nodiscard]] std::optional<postgres::detail::Row> find(Attempt& one, const Key& key) const {
    const pqxx::result rows = one.ask_and_leave(statements_.find(key, one.spelling()));
    if (rows.empty()) return std::nullopt;
    return postgres::detail::row_of(rows[0]);
  }

  [[nodiscard]] std::optional<Applied> found_by(Attempt& one, const Claim& claim, Troubles& troubles) const {
    try {
      if (auto row = find(one, claim.key)) {
        if (row->free) {
          if (++troubles.lost_races >= postgres::detail::patience) return postgres::detail::lost_races();
          troubles.take_over = true;
          return std::nullopt;
        }
        if (row->lease) return *row->lease;
        return std::move(row->found);
      }
    } catch (const std::exception&) {
      const auto error = postgres::detail::current_driver_error();
      if (!error) throw;
      if (error->connection_lost) return postgres::detail::failed_connection("08006", error->message);
      if (postgres::is_configuration(error->sqlstate))
        throw ConfigurationError{postgres::detail::explain_configuration(options_.schema, *error)};
      return postgres::detail::failed_statement(*error);
    }
    if (++troubles.vanished_rows < postgres::detail::patience) return std::nullopt;
    throw ConfigurationError{postgres::detail::explain_hidden_row(options_.schema, claim.key)};
  }

  [[nodiscard]] std::optional<Applied> answer_to(Trouble trouble, const Attempt& one, bool from_pool,
                                                 Troubles& troubles) {
    switch (trouble) {
      case Trouble::busy: return Busy{};
      case Trouble::failed: return one.failure();
      case Trouble::unprepared: spelling_ = Spelling::in_full; return std::nullopt;
      case Trouble::contended:
        if (++troubles.lost_races < postgres::detail::patience) return std::nullopt;
        return postgres::detail::lost_races();
      case Trouble::dead:
        if (!from_pool) break;
        troubles.pooled_one_was_dead = true;
        return std::nullopt;
    }
    return postgres::detail::failed_connection("08006", "the connection was lost while claiming the event");
  }

  /// What the second message of an acquisition read.
  [[nodiscard]] static std::optional<Acquired> acquired(const pqxx::result& rows, const ClaimToken& token) {
    const auto fields = rows[0];
    const bool too_old = std::string_view{fields[7].c_str()} == "t";
    const auto row = postgres::detail::row_of(fields);
    if (row && row->lease && row->found.token == token)  // also if the lease is over by now
      return Grant{token, fields[6].template as<std::uint64_t>()};
    if (!row || row->free) return too_old ? std::optional<Acquired>{BeyondWindow{}} : std::nullopt;
    if (!row->lease) return row->found;
    return *row->lease;
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
  postgres::detail::Messenger messenger_;
  postgres::detail::Counter counter_;
  postgres::detail::AtOnce at_once_;
  idem::detail::KeyGate gate_;
  std::atomic<Spelling> spelling_{Spelling::prepared};
};

static_assert(StatementStore<PostgresStore> && BatchStore<PostgresStore> && LeaseStore<PostgresStore> &&
              CountingStore<PostgresStore>);

}  // namespace idem
