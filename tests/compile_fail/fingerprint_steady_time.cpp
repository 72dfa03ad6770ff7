// expect: does not know this type: name its fields one by one
// SPDX-License-Identifier: MIT
#include <chrono>

#include <idem/fingerprint.hpp>

int main() { return idem::fingerprint_of(std::chrono::steady_clock::now()).given() ? 0 : 1; }
