// expect: takes a float or double only as idem::exact(value)
// SPDX-License-Identifier: MIT
#include <idem/fingerprint.hpp>

int main() { return idem::fingerprint_of("order-17", 1.5).given() ? 0 : 1; }
