// SPDX-License-Identifier: MIT
// For a service that keeps its own connections and transactions: only the claim.

#include <cstdlib>
#include <iostream>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

// [own_transaction]
bool import_row(pqxx::connection& connection, const std::string& row_id, const std::string& line) {
  pqxx::work tx{connection};
  const idem::Key key{"acme", "import.v1", row_id};
  switch (idem::postgres::claim(tx, key, idem::fingerprint_bytes(line))) {
    case idem::postgres::Claimed::fresh: break;
    case idem::postgres::Claimed::duplicate: return true;  // done before; the transaction is still usable
    case idem::postgres::Claimed::mismatch: return false;  // the id was used by another line
  }
  idem::postgres::exec(tx, "INSERT INTO imported (line) VALUES ($1)", line);
  tx.commit();  // the key and the row, or neither; a commit that throws in_doubt_error: import the row again
  return true;
}
// [own_transaction]

int main() {
  idem::PostgresStore{""}.create_schema();
  pqxx::connection connection{""};
  {
    pqxx::nontransaction sql{connection};
    sql.exec("CREATE TABLE IF NOT EXISTS imported (line text NOT NULL)");
    sql.exec("TRUNCATE imported");
  }
  const std::string id = std::to_string(std::random_device{}());
  const bool answers = import_row(connection, id, "a;1") && import_row(connection, id, "a;1") &&
                       !import_row(connection, id, "a;2");
  pqxx::nontransaction sql{connection};
  const int rows = sql.exec("SELECT count(*) FROM imported")[0][0].as<int>();
  std::cout << "imported " << rows << " row\n";
  return answers && rows == 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
