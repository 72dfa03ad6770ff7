// SPDX-License-Identifier: MIT
// Old headers define min and max as macros; the library's own headers bear it.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <ranges>
#include <ratio>
#include <set>
#include <span>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pqxx/pqxx>

#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

int main() { return max(idem::fingerprint_of(1) == idem::fingerprint_of(2) ? 1 : 0, 0); }
