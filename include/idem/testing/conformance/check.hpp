// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <idem/duration.hpp>
#include <idem/store.hpp>

namespace idem::testing {

template <class B>
concept WritesSum = requires(B& bench, typename B::Store::Transaction& tx, std::int64_t n) {
  bench.write(tx, n);
  { bench.seen(tx) } -> std::same_as<std::int64_t>;
  { bench.sum() } -> std::same_as<std::int64_t>;
};

/// What the checks of a store are made with: a store that is empty, and nobody else's.
///
/// * `store`: the store, of the type `Store`.
/// * For a TransactionalStore: `write(tx, n)` adds `n` to a sum in the transaction, `seen(tx)` is the sum as the
///   transaction sees it, `sum()` the one that is committed.
/// * If it has `advance(Duration)`, which lets so much time pass for what is stored, windows and the ends of leases
///   are checked too.
template <class B>
concept StoreBench = std::same_as < std::remove_reference_t<decltype(B::store)>,
typename B::Store >
    &&(TransactionalStore<typename B::Store> ||
       LeaseStore<typename B::Store>)&&(!TransactionalStore<typename B::Store> || WritesSum<B>);

template <class B>
concept MovesTime = requires(B& bench, Duration span) {
  bench.advance(span);
};

/// What did not hold, as it is found.
class Findings {
 public:
  /// `what`: what should be so, for people.
  void expect(bool holds, std::string_view what) {
    if (!holds) failed_.emplace_back(what);
  }
  template <class Answer, class... Answers>
  void expect_answer(const std::variant<Answers...>& met, std::string_view what) {
    expect(std::holds_alternative<Answer>(met), what);
  }
  [[nodiscard]] std::vector<std::string> failed() && { return std::move(failed_); }

 private:
  std::vector<std::string> failed_ = {};
};

/// One sentence of the contract in store.hpp, and what shows it on a fresh bench.
template <class Bench>
struct StoreCheck {
  std::string sentence;
  std::function<void(Bench&, Findings&)> show;
};

/// What of the check does not hold on this bench, which is used up by it; empty: it holds.
template <class Bench>
[[nodiscard]] std::vector<std::string> failures_of(const StoreCheck<Bench>& check, Bench& bench) {
  Findings findings;
  try {
    check.show(bench, findings);
  } catch (const std::exception& e) {
    findings.expect(false, std::string{"nothing is thrown, as was: "} + e.what());
  } catch (...) {
    findings.expect(false, "nothing is thrown");
  }
  return std::move(findings).failed();
}

}  // namespace idem::testing
