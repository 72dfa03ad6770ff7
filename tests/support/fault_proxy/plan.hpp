// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace idem::tests {

/// Where an exchange is broken. An exchange is what a client sends up to and including a simple Query, a
/// function call or a Sync; its answer ends with ReadyForQuery.
///
/// Every kind but the two `hang_…` closes both sockets once it has let through what it says.
enum class Cut {
  before_server,     ///< swallowed: the server never has it
  inside,            ///< only the first `bytes` reach the server, never all of it
  answer_unawaited,  ///< delivered, then cut while the server may still be running it
  answer,            ///< delivered and finished by the server, whose answer is swallowed
  inside_answer,     ///< as `answer`, but the client has the first `bytes` of it, never all of it
  hang_request,      ///< held back from the server until `release()`, then relayed
  hang_answer  ///< delivered and finished by the server, the answer held until `release()`, then relayed
};

[[nodiscard]] constexpr const char* name_of(Cut cut) noexcept {
  switch (cut) {
    case Cut::before_server: return "before_server";
    case Cut::inside: return "inside";
    case Cut::answer_unawaited: return "answer_unawaited";
    case Cut::answer: return "answer";
    case Cut::inside_answer: return "inside_answer";
    case Cut::hang_request: return "hang_request";
    case Cut::hang_answer: return "hang_answer";
  }
  return "?";
}

/// One fault, which fires once.
struct Fault {
  Cut cut = Cut::answer;
  /// Only exchanges whose SQL has this as a whole word, in this case; empty: every exchange.
  std::string word = {};
  /// The nth such exchange over all connections, 1 being the first. Counted from arming, or from when the
  /// fault armed before it was met.
  std::size_t nth = 1;
  /// For `inside` and `inside_answer`.
  std::size_t bytes = 0;
};

/// Random faults: for each exchange, how often in a thousand it meets each kind.
///
/// Deterministic: the draw for an exchange is a hash of the seed and its number, and exchanges are numbered
/// from 1 over all connections in the order they reach the proxy; new connections have numbers of their own.
/// One worker that does the same work therefore meets the same faults; several workers share the same faults
/// out as their threads happen to run.
struct FaultPlan {
  std::uint64_t seed = 0;
  unsigned before_server = 0;
  unsigned inside = 0;
  unsigned answer_unawaited = 0;
  unsigned answer = 0;
  unsigned inside_answer = 0;
  /// Of a thousand new connections, how many are closed at once.
  unsigned refuse = 0;
};

/// Throws: std::invalid_argument, when the shares add up to more than a thousand.
inline void check(const FaultPlan& plan) {
  const unsigned shares[] = {plan.before_server, plan.inside, plan.answer_unawaited, plan.answer,
                             plan.inside_answer};
  std::uint64_t sum = 0;
  for (const unsigned share : shares) sum += share;
  if (sum > 1000 || plan.refuse > 1000) {
    throw std::invalid_argument{"FaultPlan: the shares of one exchange add up to " + std::to_string(sum) +
                                " and refuse is " + std::to_string(plan.refuse) +
                                "; each may be at most 1000"};
  }
}

/// The kinds of draw that must not follow one another: each hashes with its own constant.
enum class Draw : std::uint64_t { cut = 1, bytes = 2, refuse = 3 };

/// A number that depends on its three arguments alone, on every compiler (splitmix64's mixing, twice).
[[nodiscard]] constexpr std::uint64_t draw(std::uint64_t seed, Draw kind, std::uint64_t number) noexcept {
  const auto mix = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  };
  return mix(mix(seed ^ (static_cast<std::uint64_t>(kind) << 56U)) + number);
}

/// The cut that `plan` has for its nth exchange.
[[nodiscard]] constexpr std::optional<Cut> drawn_cut(const FaultPlan& plan, std::uint64_t number) noexcept {
  std::uint64_t rest = draw(plan.seed, Draw::cut, number) % 1000;
  const struct {
    Cut cut;
    unsigned share;
  } table[] = {{Cut::before_server, plan.before_server},
               {Cut::inside, plan.inside},
               {Cut::answer_unawaited, plan.answer_unawaited},
               {Cut::answer, plan.answer},
               {Cut::inside_answer, plan.inside_answer}};
  for (const auto& row : table) {
    if (rest < row.share) return row.cut;
    rest -= row.share;
  }
  return std::nullopt;
}

}  // namespace idem::tests
