// SPDX-License-Identifier: MIT
#include "odr.hpp"

#include <idem/idem.hpp>

#include <idem/postgres.hpp>

std::string key_of_another_unit() {
  const idem::PostgresStore store{"dbname=shop"};
  return idem::Key{"acme", "charge-order.v1", "e-1"}.to_string();
}
