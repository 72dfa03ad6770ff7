// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <idem/detail/decisions.hpp>
#include <idem/store.hpp>

namespace idem::detail {

/// The way of one message whose effect is in the store: claim, handler, commit, and again until it is
/// decided.
template <class Store, class Terms>
class Delivery : public Decisions<Terms> {
 public:
  using Transaction = typename Store::Transaction;

  Delivery(Store& store, const Terms& terms, const Key& key, const Event& event, const std::stop_token& stop)
      : Decisions<Terms>{terms, key, event, stop}, store_{store}, claim_{this->claim()} {}

  /// An earlier transaction of this call may have committed the effect already.
  void begin_in_doubt(InDoubt in_doubt) { decide(std::move(in_doubt)); }

  /// An earlier transaction of this call, which was undone, had claimed the key with this token.
  void remember(const ClaimToken& token) { own_tokens_.push_back(token); }

  /// Tries the whole way in one message, for a handler that `says` its effect. What stands in its way, even an
  /// exception of the handler, is left to the usual one. Throws: ConfigurationError.
  template <class Says>
  void try_at_once(Says says) {
    const bool plain = !claim_.doubted && own_tokens_.empty() && !this->stop_.stop_requested();
    if (!plain || this->terms_.options.attempts == Attempts::counted_by_store) return;
    std::optional<typename Store::Statements> statements;
    try {
      statements.emplace(says());
    } catch (...) {
      return;
    }
    auto met = this->ask_store(
        [&]() -> std::optional<Applied> { return store_.apply_at_once(claim_, *statements); });
    claim_.delivered = Delivered::first;  // it has been looked for
    if (!met) return;
    const auto* failed = std::get_if<Failed>(&*met);
    if (std::holds_alternative<Committed>(*met) || std::holds_alternative<InDoubt>(*met) ||
        (failed != nullptr && failed->token))
      ++this->attempts_;
    std::visit([this](auto&& answer) { this->decide(std::move(answer)); }, *std::move(met));
  }

  /// Throws: ConfigurationError.
  [[nodiscard]] Conclusion run(Effect<Transaction> effect) {
    const auto at_work = [&](Transaction& tx) -> StoredValue {
      settle_doubt();
      if (!this->may_start(store_, claim_)) throw GiveBack{};
      ++this->attempts_;
      return effect(tx);
    };
    try {
      while (!this->decided()) {
        if (this->stop_.stop_requested()) {
          give_up_waiting();
          break;
        }
        Applied met = this->ask_store([&]() -> Applied { return store_.apply(claim_, at_work); });
        claim_.delivered = Delivered::first;
        std::visit([this](auto&& answer) { this->decide(std::move(answer)); }, std::move(met));
      }
    } catch (const ConfigurationError&) {  // nobody's fault
      this->cancel();
      this->settle_start(store_, claim_);
      throw;
    }
    this->settle_start(store_, claim_);
    return this->end(resolved_);
  }

 private:
  /// How long the fate of a lost COMMIT is looked for. Its transaction may still be running.
  static constexpr Duration doubt_limit = std::chrono::seconds{5};
  static constexpr Duration doubt_pause = std::chrono::milliseconds{100};

  /// Thrown through the store to roll back a claim that turned out not to be needed.
  struct GiveBack {};

  void decide(Committed) { this->applied(); }

  void decide(Found row) {
    const bool ours = claim_.doubted && row.token == *claim_.doubted;
    if (claim_.doubted) resolved_ = Resolved::yes;
    if (ours) return this->applied();
    if (std::find(own_tokens_.begin(), own_tokens_.end(), row.token) != own_tokens_.end())
      return this->committed_by_handler();
    this->found(std::move(row));
  }

  void decide(Busy) {
    if (claim_.doubted) return give_up_waiting();
    this->busy();
  }

  void decide(Leased lease) {
    if (claim_.doubted) resolved_ = Resolved::yes;
    this->leased(lease);
  }

  void decide(BeyondWindow) {
    // The key is free: a doubted COMMIT did not happen, and this call had found the event young enough.
    if (claim_.doubted) return unresolved();
    this->beyond_window();
  }

  void decide(InDoubt in_doubt) {
    this->tell(
        {.what = Observed::in_doubt, .key = this->key_, .event = this->event_, .failure = &in_doubt.failure});
    doubt_ = std::move(in_doubt.failure);
    claim_.doubted = in_doubt.token;
    claim_.on_concurrent = Concurrent::wait;
    claim_.wait_limit = doubt_limit;
    doubt_ends_ = saturating_add(this->now(), doubt_limit);
  }

  void decide(Failed failed) {
    if (failed.token) remember(*failed.token);
    if (this->decided()) return;  // before the handler could start
    if (claim_.doubted) return look_again();
    if (given_back_) {
      const RetryStep step = *std::exchange(given_back_, std::nullopt);
      return this->follow(step, {.failure = doubt_, .fault = Fault::store});
    }
    this->failed(std::move(failed));
  }

  /// The key is ours, so a doubted COMMIT of this call did not take effect: the policy is asked whether the
  /// handler starts again at once, in this same transaction.
  void settle_doubt() {
    if (!claim_.doubted) return;
    claim_.doubted.reset();
    claim_.on_concurrent = this->terms_.options.on_concurrent;
    claim_.wait_limit = this->terms_.options.wait_limit;
    resolved_ = Resolved::yes;
    const RetryStep step = this->ask_policy(ErrorClass::in_doubt);
    if (step.retry() && step.delay == Duration{0}) return;
    given_back_ = step;
    throw GiveBack{};
  }

  /// The store could not be asked about a doubt: it may be restarting.
  void look_again() {
    const Duration left = doubt_ends_ - this->now();
    if (left <= Duration{0}) return unresolved();
    this->sleep((std::min)(left, doubt_pause));
    claim_.wait_limit = (std::max<Duration>)(doubt_ends_ - this->now(), std::chrono::milliseconds{1});
  }

  void give_up_waiting() {
    if (claim_.doubted) return unresolved();
    this->cancel();
  }

  void unresolved() {
    this->in_progress(
        {ErrorClass::in_doubt, std::string{code::in_doubt},
         "the answer to COMMIT was lost and its fate could not be found out: " + doubt_.message},
        this->terms_.options.wait_limit);
  }

  Store& store_;
  Claim claim_;
  Resolved resolved_ = Resolved::no;
  Failure doubt_ = {};
  typename Decisions<Terms>::TimePoint doubt_ends_{};
  std::optional<RetryStep> given_back_ = {};
  std::vector<ClaimToken> own_tokens_ = {};
};

}  // namespace idem::detail
