// SPDX-License-Identifier: MIT
#include <idem/json.hpp>

int main() {
  return idem::fingerprint_json(R"({"a":1,"b":2})") == idem::fingerprint_json(R"({"b":2,"a":1})") ? 0 : 1;
}
