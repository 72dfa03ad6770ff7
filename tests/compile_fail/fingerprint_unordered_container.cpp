// expect: takes no unordered container, its order is not stable
// SPDX-License-Identifier: MIT
#include <string>
#include <unordered_map>

#include <idem/fingerprint.hpp>

int main() { return idem::fingerprint_of(std::unordered_map<std::string, int>{{"a", 1}}).given() ? 0 : 1; }
