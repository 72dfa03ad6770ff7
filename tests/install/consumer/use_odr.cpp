// SPDX-License-Identifier: MIT
// One of two units that include the library in another order; linked, they are one program.
#include <idem/postgres.hpp>

#include <idem/idem.hpp>

#include "odr.hpp"

int main() {
  const idem::PostgresStore store{"dbname=shop"};
  return key_of_another_unit() == idem::Key{"acme", "charge-order.v1", "e-1"}.to_string() ? 0 : 1;
}
