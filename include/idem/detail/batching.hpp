// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <idem/batch.hpp>
#include <idem/detail/batch_run.hpp>
#include <idem/detail/handling.hpp>

namespace idem::detail {

/// How a consumer handles a batch: together where the messages can share a transaction, else one by one.
template <class Store, class Handler, class... Parts>
class Batching : protected Handling<Store, Handler, Parts...> {
 protected:
  using One = Handling<Store, Handler, Parts...>;
  using One::One;
  using typename One::Transaction;
  template <class Message>
  using Result = typename One::template Result<Message>;

  /// As many messages share a transaction at the most: what it holds locked, and does again if one fails, is
  /// bounded.
  static constexpr std::size_t batch_limit = 500;

  template <class Message>
  [[nodiscard]] BatchReport<Result<Message>> run_batch(std::span<const Event> events,
                                                       std::span<const Message> messages,
                                                       std::vector<BatchEntry<Result<Message>>> entries,
                                                       const std::stop_token& stop) const {
    using R = Result<Message>;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].event = &events[i];
      if (entries[i].outcome) continue;
      try {
        entries[i].key.emplace(events[i].tenant, this->name_, events[i].id);
        this->demand_delivery_count(events[i]);
      } catch (const InvalidKey& e) {
        entries[i].outcome = One::template rejected<Message>(code::invalid_key, e.what());
      }
    }
    if constexpr (One::template in_store<Message> && BatchStore<Store>) {
      if (this->options().attempts == Attempts::by_transport && !stop.stop_requested()) {
        const auto together = those_together(entries, this->runtime_.clock());
        const std::span<const std::size_t> all{together};
        StoppedKeys stopped;  // by what an earlier transaction has not seen acknowledged
        for (std::size_t from = 0; from < all.size(); from += batch_limit) {
          std::vector<std::size_t> some;
          for (const std::size_t i : all.subspan(from, (std::min)(batch_limit, all.size() - from)))
            if (!stopped.stopped(*entries[i].event)) some.push_back(i);
          if (some.empty()) continue;
          run_together(std::span<const std::size_t>{some}, messages, entries, stop);
          for (const std::size_t i : some)
            if (!entries[i].outcome || entries[i].outcome->action != Action::acknowledge)
              stopped.stop(*entries[i].event);
        }
      }
    }
    run_one_by_one(entries, this->runtime_.clock, [&](std::size_t i) {
      return this->deliver(*entries[i].key, *entries[i].event, messages[i], stop,
                           std::move(entries[i].prior));
    });
    BatchReport<R> report;
    report.outcomes.reserve(entries.size());
    for (auto& entry : entries) report.outcomes.push_back(*std::move(entry.outcome));
    return report;
  }

  /// Thrown through the store: the messages of a batch cannot share a transaction after all.
  struct NotTogether {};

  template <class Message>
  void run_together(std::span<const std::size_t> indices, std::span<const Message> messages,
                    std::vector<BatchEntry<Result<Message>>>& entries, const std::stop_token& stop) const {
    std::vector<Claim> claims;
    claims.reserve(indices.size());
    for (const std::size_t i : indices)
      claims.push_back({.key = *entries[i].key,
                        .fingerprint = entries[i].event->fingerprint,
                        .on_concurrent = this->options().on_concurrent,
                        .wait_limit = this->options().wait_limit,
                        .window = this->options().window,
                        .occurred_at = entries[i].event->occurred_at,
                        .stop = stop});
    const auto work = [&](Transaction& tx, std::span<const BatchItem> items) {
      return run_handlers(tx, items, indices, messages, entries, stop);
    };
    const bool nothing_decided = std::none_of(entries.begin(), entries.end(),
                                              [](const auto& entry) { return entry.outcome.has_value(); });
    BatchApplied applied = BatchUndone{};
    try {
      applied = this->store_.apply_batch(claims, work);
    } catch (const ConfigurationError&) {
      if (nothing_decided) throw;  // else one by one, where it becomes an outcome
    }
    if (auto* done = std::get_if<BatchCommitted>(&applied)) {
      for (std::size_t n = 0; n < indices.size(); ++n) {
        auto& entry = entries[indices[n]];
        const auto terms = this->terms();
        ItemDecision<std::remove_const_t<decltype(terms)>> way{terms, *entry.key, *entry.event, stop};
        if (std::holds_alternative<Committed>(done->items[n]))
          entry.outcome =
              this->outcome_of(way.of(Committed{}), way, entry.prior.starts, std::move(entry.prior.result));
        else if (auto* row = std::get_if<Found>(&done->items[n])) {
          try {
            entry.outcome = this->outcome_of(way.of(std::move(*row)), way, entry.prior.starts,
                                             std::optional<Result<Message>>{});
          } catch (const ConfigurationError&) {
            // The sink's: met again one by one, where it becomes an outcome.
          }
        }
      }
    } else if (auto* doubt = std::get_if<BatchInDoubt>(&applied)) {
      for (std::size_t n = 0; n < indices.size(); ++n)
        if (doubt->tokens[n]) entries[indices[n]].prior.in_doubt = InDoubt{*doubt->tokens[n], doubt->failure};
    } else {
      auto& tokens = std::get<BatchUndone>(applied).tokens;
      tokens.resize(indices.size());
      for (std::size_t n = 0; n < indices.size(); ++n) entries[indices[n]].prior.token = tokens[n];
    }
  }

  /// Runs the handlers of what is ours, in order, as long as each may run at its turn.
  template <class Message>
  [[nodiscard]] std::vector<StoredValue> run_handlers(Transaction& tx, std::span<const BatchItem> items,
                                                      std::span<const std::size_t> indices,
                                                      std::span<const Message> messages,
                                                      std::vector<BatchEntry<Result<Message>>>& entries,
                                                      const std::stop_token& stop) const {
    std::vector<StoredValue> values;
    std::vector<const Message*> fresh;
    std::vector<const Key*> fresh_keys;
    StoppedKeys stopped;
    [[maybe_unused]] std::optional<decltype(this->keep_visible(*entries[0].key, *entries[0].event))> held;
    for (std::size_t n = 0; n < indices.size(); ++n) {
      auto& entry = entries[indices[n]];
      if (!std::holds_alternative<Committed>(items[n])) {
        const auto* row = std::get_if<Found>(&items[n]);
        const bool differs = row != nullptr && comparable(row->fingerprint, entry.event->fingerprint) &&
                             row->fingerprint != entry.event->fingerprint;
        if (row == nullptr || (differs && this->options().on_mismatch == Mismatch::dead_letter))
          stopped.stop(*entry.event);
        continue;
      }
      const auto& visible_until = entry.event->visible_until;
      if (stopped.stopped(*entry.event) || stop.stop_requested() ||
          (visible_until && *visible_until <= this->runtime_.clock()))
        throw NotTogether{};
      if (!held) held.emplace(this->keep_visible(*entry.key, *entry.event));
      if constexpr (One::template form<Message> == HandlerForm::bulk) {
        fresh.push_back(&messages[indices[n]]);
        fresh_keys.push_back(&*entry.key);
        values.emplace_back();
      } else {
        ++entry.prior.starts;
        if constexpr (requires { tx.working_on(*entry.key); }) tx.working_on(*entry.key);
        values.push_back(this->run_handler(tx, messages[indices[n]], entry.prior.result));
      }
    }
    if constexpr (One::template form<Message> == HandlerForm::bulk) {
      for (std::size_t n = 0; n < indices.size(); ++n)
        if (std::holds_alternative<Committed>(items[n])) ++entries[indices[n]].prior.starts;
      if constexpr (requires { tx.working_on(fresh_keys); }) tx.working_on(fresh_keys);
      std::invoke(this->handler_, tx, std::span<const Message* const>{fresh});
    }
    return values;
  }
};

}  // namespace idem::detail
