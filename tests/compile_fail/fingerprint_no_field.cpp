// expect: needs at least one field
// SPDX-License-Identifier: MIT
#include <idem/fingerprint.hpp>

int main() { return idem::fingerprint_of().given() ? 0 : 1; }
