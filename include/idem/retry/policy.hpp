// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include <idem/retry/decision.hpp>
#include <idem/retry/detail/saturating.hpp>

namespace idem {

/// The question a stage answers; also the order stages are asked in, however they were joined.
enum class RetryCategory { backoff, jitter, hint, attempts, elapsed, lease, budget };

/// A decision in the making, handed from stage to stage.
struct RetryDraft {
  RetryDecision decision{};
  Duration base{};                   ///< what the backoff grows from
  Duration cap = (Duration::max)();  ///< what the backoff grows to

  constexpr void window(Duration lo, Duration hi) noexcept {
    decision.lo = lo;
    decision.hi = (std::max)(lo, hi);
  }

  /// The more final verdict wins, so the order in which limits speak does not matter.
  constexpr void end(RetryVerdict verdict, RetryReason reason) noexcept {
    if (verdict > decision.verdict || (verdict == decision.verdict && reason < decision.reason)) {
      decision.verdict = verdict;
      decision.reason = reason;
    }
  }
};

/// Anything that decides on retries: a stage, or stages joined with `|`.
///
/// `decide` is pure. `withdraw` is asked once, after `decide` said retry and before the delay; false: do not.
/// `succeeded` is told about a success. Both do nothing but with a budget.
template <class T>
concept RetryPolicy = std::is_trivially_copyable_v<T> && requires(const T& policy, const RetryState& state) {
  { policy.decide(state) }
  noexcept->std::same_as<RetryDecision>;
  { policy.withdraw() }
  noexcept->std::same_as<bool>;
  { policy.succeeded() }
  noexcept;
  { policy.attempts_allowed() }
  noexcept->std::same_as<std::uint64_t>;
  { policy.elapsed_allowed() }
  noexcept->std::same_as<Duration>;
  { T::limits_attempts } -> std::convertible_to<bool>;
  { T::limits_elapsed } -> std::convertible_to<bool>;
};

/// One stage of a policy: derives from `RetryStageBase`, names its `category` and changes the draft.
template <class T>
concept RetryStage = RetryPolicy<T> && requires(const T& stage, const RetryState& state, RetryDraft& draft) {
  { T::category } -> std::convertible_to<RetryCategory>;
  { stage.apply(state, draft) }
  noexcept;
};

/// True if the policy ends by itself: it has `MaxAttempts`, `MaxElapsed` or `Intervals`.
template <class P>
inline constexpr bool is_bounded_v = P::limits_attempts || P::limits_elapsed;

/// True if the policy can stop by counting alone, as `Redeliver` does: it has `MaxAttempts` or `Intervals`.
template <class P>
inline constexpr bool has_limit_v = P::limits_attempts;

namespace detail {

template <RetryCategory Category, class... Stages>
inline constexpr std::size_t count_of = (std::size_t{0} + ... + (Stages::category == Category ? 1U : 0U));

/// Asks the stages, which are in the order of their categories.
template <class... Stages>
[[nodiscard]] constexpr RetryDecision decide(const RetryState& state, const Stages&... stages) noexcept {
  static_assert(
      count_of<RetryCategory::jitter, Stages...> == 0 || count_of<RetryCategory::backoff, Stages...> == 1,
      "a jitter spreads the delay of a backoff: join ExponentialBackoff, LinearBackoff, "
      "ConstantBackoff, Intervals or Immediate to this retry policy");
  static_assert(
      !(Stages::needs_growth || ...) || (Stages::grows || ...),
      "DecorrelatedJitter grows from a base to a cap: join it to ExponentialBackoff or LinearBackoff");
  RetryDraft draft;
  if (state.kind == ErrorClass::permanent || state.kind == ErrorClass::configuration) {
    draft.end(RetryVerdict::stop, RetryReason::not_retryable);
  } else if (state.kind == ErrorClass::cancelled || state.kind == ErrorClass::in_doubt) {
    draft.end(RetryVerdict::redeliver, RetryReason::not_retryable);
  }
  if (state.retry_after && *state.retry_after < Duration::zero()) {
    draft.end(RetryVerdict::stop, RetryReason::no_retry_hint);
  } else if (state.retry_after) {
    draft.decision.retry_after = state.retry_after;
    if (count_of<RetryCategory::hint, Stages...> == 0) {
      draft.end(RetryVerdict::redeliver, RetryReason::hint_not_honoured);
    }
  }
  (stages.apply(state, draft), ...);
  if (draft.decision.verdict != RetryVerdict::retry) draft.window({}, {});
  return draft.decision;
}

/// False, with one sentence of the compiler, if two stages answer the same question.
template <class... Stages>
[[nodiscard]] consteval bool one_of_each() {
  constexpr bool backoffs = count_of<RetryCategory::backoff, Stages...> <= 1;
  constexpr bool jitters = count_of<RetryCategory::jitter, Stages...> <= 1;
  constexpr bool hints = count_of<RetryCategory::hint, Stages...> <= 1;
  constexpr bool attempts = count_of<RetryCategory::attempts, Stages...> <= 1;
  constexpr bool elapsed = count_of<RetryCategory::elapsed, Stages...> <= 1;
  constexpr bool leases = count_of<RetryCategory::lease, Stages...> <= 1;
  constexpr bool budgets = count_of<RetryCategory::budget, Stages...> <= 1;
  static_assert(backoffs, "this retry policy has two backoffs: keep one");
  static_assert(jitters, "this retry policy has two jitters: keep one");
  static_assert(hints, "this retry policy has HonourRetryAfter twice: keep one");
  static_assert(attempts, "this retry policy has MaxAttempts twice: keep one");
  static_assert(elapsed, "this retry policy has MaxElapsed twice: keep one");
  static_assert(leases, "this retry policy has WithinLease twice: keep one");
  static_assert(budgets, "this retry policy has WithBudget twice: keep one");
  return backoffs && jitters && hints && attempts && elapsed && leases && budgets;
}

}  // namespace detail

/// What every stage has from the start, so that one stage alone is a policy too.
template <class Stage>
struct RetryStageBase {
  static constexpr bool limits_attempts = false;
  static constexpr bool limits_elapsed = false;
  static constexpr bool grows = false;         // a backoff with a base and a cap
  static constexpr bool needs_growth = false;  // a jitter that works between the two

  [[nodiscard]] constexpr RetryDecision decide(const RetryState& state) const noexcept {
    return detail::decide(state, static_cast<const Stage&>(*this));
  }
  constexpr void apply(const RetryState&, RetryDraft&) const noexcept {}
  [[nodiscard]] constexpr bool withdraw() const noexcept { return true; }
  constexpr void succeeded() const noexcept {}
  [[nodiscard]] constexpr std::uint64_t attempts_allowed() const noexcept {
    return (std::numeric_limits<std::uint64_t>::max)();
  }
  [[nodiscard]] constexpr Duration elapsed_allowed() const noexcept { return (Duration::max)(); }
};

/// Stages joined with `|`, in the order of their categories.
///
/// Inherits its stages, privately: a `std::tuple` is not trivially copyable everywhere.
template <class... Stages>
class ComposedPolicy : private Stages... {
 public:
  static constexpr bool limits_attempts = (Stages::limits_attempts || ...);
  static constexpr bool limits_elapsed = (Stages::limits_elapsed || ...);

  constexpr explicit ComposedPolicy(const Stages&... stages) noexcept : Stages(stages)... {}

  [[nodiscard]] constexpr RetryDecision decide(const RetryState& state) const noexcept {
    return detail::decide(state, static_cast<const Stages&>(*this)...);
  }
  [[nodiscard]] constexpr bool withdraw() const noexcept { return (Stages::withdraw() && ...); }
  constexpr void succeeded() const noexcept { (Stages::succeeded(), ...); }
  [[nodiscard]] constexpr std::uint64_t attempts_allowed() const noexcept {
    return (std::min)({Stages::attempts_allowed()...});
  }
  [[nodiscard]] constexpr Duration elapsed_allowed() const noexcept {
    return (std::min)({Stages::elapsed_allowed()...});
  }

  template <class Stage>
  static constexpr bool has = (std::is_same_v<Stage, Stages> || ...);

  template <class Stage>
    requires has<Stage>
  [[nodiscard]] constexpr const Stage& stage() const noexcept { return *this; }
};

namespace detail {

template <class T>
inline constexpr bool is_composed_v = false;
template <class... Stages>
inline constexpr bool is_composed_v<ComposedPolicy<Stages...>> = true;

template <class T>
concept Joinable = is_composed_v<T> || RetryStage<T>;

template <class... Stages>
[[nodiscard]] constexpr const ComposedPolicy<Stages...>& as_policy(
    const ComposedPolicy<Stages...>& p) noexcept {
  return p;
}
template <RetryStage Stage>
[[nodiscard]] constexpr ComposedPolicy<Stage> as_policy(const Stage& stage) noexcept {
  return ComposedPolicy<Stage>{stage};
}

/// The index of each stage, in the order of the categories, which differ.
template <class... Stages>
[[nodiscard]] consteval auto order_of() {
  constexpr std::array categories{Stages::category...};
  std::array<std::size_t, sizeof...(Stages)> order{};
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::size_t rank = 0;
    for (const auto category : categories) rank += category < categories[i] ? 1U : 0U;
    order[rank] = i;
  }
  return order;
}

template <class Stage, class A, class B>
[[nodiscard]] constexpr const Stage& stage_of(const A& a, const B& b) noexcept {
  if constexpr (A::template has<Stage>) {
    return a.template stage<Stage>();
  } else {
    return b.template stage<Stage>();
  }
}

template <class... As, class... Bs>
[[nodiscard]] constexpr auto join(const ComposedPolicy<As...>& a, const ComposedPolicy<Bs...>& b) noexcept {
  if constexpr (one_of_each<As..., Bs...>()) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      using All = std::tuple<As..., Bs...>;
      constexpr auto order = order_of<As..., Bs...>();
      return ComposedPolicy<std::tuple_element_t<order[I], All>...>{
          stage_of<std::tuple_element_t<order[I], All>>(a, b)...};
    }
    (std::index_sequence_for<As..., Bs...>{});
  } else {
    return a;
  }
}

}  // namespace detail

/// Joins stages to a policy, in any order, at most one of each category.
template <detail::Joinable A, detail::Joinable B>
[[nodiscard]] constexpr auto operator|(const A& a, const B& b) noexcept {
  return detail::join(detail::as_policy(a), detail::as_policy(b));
}

}  // namespace idem
