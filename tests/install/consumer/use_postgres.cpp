// SPDX-License-Identifier: MIT
#include <idem/idem.hpp>
#include <idem/postgres.hpp>

int main() {
  const idem::PostgresStore store{"dbname=shop"};  // connects to nothing yet
  return 0;
}
