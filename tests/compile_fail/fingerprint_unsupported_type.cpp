// expect: does not know this type: name its fields one by one
// SPDX-License-Identifier: MIT
#include <idem/fingerprint.hpp>
#include <string>

struct Order {
  std::string id;
};

int main() { return idem::fingerprint_of(Order{"order-17"}).given() ? 0 : 1; }
