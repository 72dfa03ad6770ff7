// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "faults/ledger.hpp"

namespace idem::tests::faults {

/// Asks again and again until the server says `wanted`; a bound instead of a sleep.
inline void await_value(const std::string& sql, const std::string& wanted) {
  pqxx::connection connection{server_dsn()};
  pqxx::nontransaction session{connection};
  for (int i = 0; i < 200'000; ++i)
    if (wanted == session.exec(sql)[0][0].c_str()) return;
  throw std::runtime_error{"never became " + wanted + ": " + sql};
}

/// A COMMIT that stands still: while `gate` is held, a deferred trigger on the ledger's effects waits for it.
class SlowCommit {
 public:
  explicit SlowCommit(const Ledger& ledger) : ledger_{ledger} {
    execute("CREATE FUNCTION " + ledger.schema() +
            ".wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(hashtext('" +
            ledger.schema() + "')); RETURN NULL; END $$");
    execute("CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON " + ledger.effects() +
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION " + ledger.schema() +
            ".wait_at_commit()");
    gate_.exec("SELECT pg_advisory_lock(hashtext('" + ledger.schema() + "'))");
  }

  /// Lets every COMMIT go on, this one and later ones.
  void release() { gate_.exec("SELECT pg_advisory_unlock(hashtext('" + ledger_.schema() + "'))"); }

  /// Returns when a COMMIT stands at the gate.
  void await_commit() const { await_value("SELECT count(*) FROM pg_locks WHERE " + waiting(), "1"); }

  /// Ends the backend whose COMMIT stands at the gate.
  void terminate_commit() const {
    const std::string pid = query_value("SELECT pid FROM pg_locks WHERE " + waiting());
    execute("SELECT pg_terminate_backend(" + pid + ")");
    await_value("SELECT count(*) FROM pg_stat_activity WHERE pid = " + pid, "0");
  }

  /// Returns when somebody waits for the transaction that stands at the gate.
  void await_resolver() const {
    await_value(
        "SELECT count(*) > 0 FROM pg_locks w JOIN pg_locks h USING (transactionid) WHERE NOT w.granted "
        "AND h.granted AND h.pid IN (SELECT pid FROM pg_locks WHERE " +
            waiting() + ")",
        "t");
  }

 private:
  [[nodiscard]] std::string waiting() const {
    return "locktype = 'advisory' AND NOT granted AND objid::bigint = (hashtext('" + ledger_.schema() +
           "')::bigint & 4294967295)";
  }

  const Ledger& ledger_;
  pqxx::connection connection_{server_dsn()};
  pqxx::nontransaction gate_{connection_};
};

}  // namespace idem::tests::faults
