// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>

#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// Another session holds the row that our statement needs.
[[nodiscard]] inline Failed locked(std::string_view what) {
  return {.failure = {ErrorClass::transient, "55P03", std::string{what}}, .fault = Fault::store};
}

/// Whether a message that got no answer may have been carried out.
[[nodiscard]] inline bool may_be_done(const Failed& failed) { return failed.failure.code == "08006"; }

/// Sends messages that are transactions of their own, on sessions of the pool.
///
/// A message may be sent twice when its answer is lost: it must do the same when it is repeated.
class Messenger {
 public:
  Messenger(Pool& pool, const Connector& connector, const PostgresOptions& options)
      : pool_{pool}, connector_{connector}, options_{options} {}

  /// The last statement's rows, or why there are none. Throws: ConfigurationError.
  using Answer = std::variant<pqxx::result, Busy, Failed>;

  [[nodiscard]] Answer ask(const std::string& message, Duration wait, const std::stop_token& stop) const {
    const auto deadline = idem::detail::saturating_add(std::chrono::steady_clock::now(), wait);
    bool replaced = false;
    int lost = 0;
    while (true) {
      auto loan = pool_.take(deadline, stop);
      if (!loan) return no_connection(pool_.limit());
      const bool from_pool = loan->from_pool() && !replaced;
      try {
        if (!from_pool) loan->open(connector_);
        pqxx::result rows = pqxx::nontransaction{*(*loan)->connection}.exec(message);
        loan->give_back();
        return rows;
      } catch (const Unreachable& e) {
        return failed_connection(replaced ? "08006" : "08001", e.what());
      } catch (const ConfigurationError&) {
        throw;
      } catch (const std::exception&) {
        const auto error = current_driver_error();
        if (!error) throw;
        switch (trouble_of(options_, *error, **loan)) {
          case Trouble::busy: loan->give_back(); return Busy{};
          case Trouble::contended:
            loan->give_back();
            if (++lost < patience) continue;
            return lost_races();
          case Trouble::dead:
            if (!from_pool) return failed_connection("08006", "the connection was lost: " + error->message);
            replaced = true;
            continue;
          case Trouble::unprepared:
          case Trouble::failed: loan->give_back(); return failed_statement(*error);
        }
      }
    }
  }

  /// Sends a message that answers with a row if it found what it is about.
  [[nodiscard]] Held tell(const std::string& message, Duration wait) const {
    const Answer answer = ask(message, wait, {});
    if (const auto* failed = std::get_if<Failed>(&answer)) return *failed;
    if (std::holds_alternative<Busy>(answer)) return locked("the event's row is locked");
    if (std::get<pqxx::result>(answer).empty()) return Lost{};
    return Kept{};
  }

 private:
  Pool& pool_;
  const Connector& connector_;
  const PostgresOptions& options_;
};

}  // namespace idem::postgres::detail
