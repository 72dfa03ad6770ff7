// SPDX-License-Identifier: MIT
#include <idem/idem.hpp>

int main() {
  const idem::Key key{"acme", "charge-order.v1", "order-paid-1"};
  return key.to_string().empty() || idem::fingerprint_of(1, "x") != idem::fingerprint_of(1, "x") ? 1 : 0;
}
