// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <idem/postgres/detail/attempt.hpp>
#include <idem/postgres/detail/errors.hpp>
#include <idem/postgres/detail/pool.hpp>
#include <idem/postgres/detail/statements.hpp>
#include <idem/retry/detail/saturating.hpp>
#include <idem/store.hpp>

namespace idem::postgres::detail {

/// One try at a batch of events in one transaction. Whatever comes in its way undoes it, but for a lost
/// COMMIT: one by one every case has its own answer.
class BatchAttempt {
 public:
  BatchAttempt(const Statements& statements, const PostgresOptions& options, const Connector& connector,
               Pool& pool, Spelling spelling)
      : statements_{statements}, options_{options}, connector_{connector}, pool_{pool}, spelling_{spelling} {}

  /// Throws: ConfigurationError.
  [[nodiscard]] BatchApplied run(std::span<const Claim> claims, BatchEffect<Transaction>& effect) {
    if (claims.empty()) return BatchCommitted{};
    if (!options_.tenant_setting.empty() && !one_tenant(claims)) return BatchUndone{};
    const Claim& first = claims.front();
    const auto deadline = idem::detail::saturating_add(std::chrono::steady_clock::now(), first.wait_limit);
    auto loan = pool_.take(deadline, first.stop);
    if (!loan) return BatchUndone{};
    try {
      if (!loan->from_pool()) loan->open(connector_);
    } catch (const Unreachable&) {
      return BatchUndone{};
    }
    BatchApplied answer = BatchUndone{};
    bool clean = false;
    {
      Attempt one{**loan, statements_, options_, spelling_};
      try {
        answer = attempt(one, **loan, claims, effect);
      } catch (const ConfigurationError&) {
        throw;
      } catch (const std::exception&) {  // undone with its session
      }
      clean = one.clean();
    }
    if (clean) loan->give_back();
    return answer;
  }

 private:
  [[nodiscard]] static bool one_tenant(std::span<const Claim> claims) {
    return std::all_of(claims.begin(), claims.end(),
                       [&](const Claim& claim) { return claim.key.tenant() == claims.front().key.tenant(); });
  }

  [[nodiscard]] BatchApplied attempt(Attempt& one, const Session& session, std::span<const Claim> claims,
                                     BatchEffect<Transaction>& effect) const {
    const std::vector<ClaimToken> tokens = tokens_for(claims.size());
    const auto opened = one.open(claim_sorted(claims, tokens, session));
    const auto* claimed = std::get_if<pqxx::result>(&opened);
    if (claimed == nullptr) {
      one.roll_back_claim();
      return BatchUndone{};
    }
    BatchCommitted batch;
    batch.items.resize(claims.size());
    for_each_token((*claimed)[0][1].c_str(),
                   [&](const ClaimToken& token) { batch.items[place_of(token)] = Committed{}; });
    std::vector<std::size_t> ours;
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < claims.size(); ++i)
      (std::holds_alternative<Committed>(batch.items[i]) ? ours : others).push_back(i);
    if (!others.empty()) find_others(one, claims, others, batch);
    if (ours.empty()) {
      one.roll_back_claim();
      return batch;
    }
    const Applied applied = one.run(tokens.front(), [&](Transaction& tx) {
      const std::vector<StoredValue> values = effect(tx, batch.items);
      return statements_.commit_batch(one.xid(), claims, ours, values, spelling_);
    });
    if (std::holds_alternative<Committed>(applied)) return batch;
    std::vector<std::optional<ClaimToken>> own(claims.size());
    for (const std::size_t place : ours) own[place] = tokens[place];
    if (const auto* doubt = std::get_if<InDoubt>(&applied))
      return BatchInDoubt{std::move(own), doubt->failure};
    return BatchUndone{std::move(own)};
  }

  /// In the byte order of the keys, the same for every caller: two batches never wait for each other in a
  /// ring.
  [[nodiscard]] std::string claim_sorted(std::span<const Claim> claims, std::span<const ClaimToken> tokens,
                                         const Session& session) const {
    std::vector<std::size_t> order(claims.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return claims[a].key < claims[b].key; });
    std::vector<const Claim*> sorted_claims;
    std::vector<ClaimToken> sorted_tokens;
    for (const std::size_t i : order) {
      sorted_claims.push_back(&claims[i]);
      sorted_tokens.push_back(tokens[i]);
    }
    const bool waits = claims.front().on_concurrent == Concurrent::wait;
    return statements_.claim_batch(sorted_claims, sorted_tokens,
                                   waits ? claims.front().wait_limit : Duration{0}, session);
  }

  /// Random tokens whose last four bytes are the claim's place, by which the server's answer is read.
  [[nodiscard]] static std::vector<ClaimToken> tokens_for(std::size_t count) {
    std::vector<ClaimToken> tokens(count, random_token());
    for (std::size_t place = 0; place < count; ++place)
      for (std::size_t byte = 0; byte < 4; ++byte)
        tokens[place].bytes[12 + byte] = static_cast<std::byte>(place >> (8 * byte) & 0xFF);
    return tokens;
  }

  static void for_each_token(std::string_view joined,
                             idem::detail::FunctionRef<void(const ClaimToken&)> take) {
    while (!joined.empty()) {
      const auto comma = joined.find(',');
      take(token_of(joined.substr(0, comma)));
      joined.remove_prefix(comma == std::string_view::npos ? joined.size() : comma + 1);
    }
  }

  [[nodiscard]] static std::size_t place_of(const ClaimToken& token) {
    std::size_t place = 0;
    for (std::size_t byte = 0; byte < 4; ++byte)
      place |= std::to_integer<std::size_t>(token.bytes[12 + byte]) << (8 * byte);
    return place;
  }

  void find_others(Attempt& one, std::span<const Claim> claims, std::span<const std::size_t> others,
                   BatchCommitted& batch) const {
    for (const auto& fields : one.ask(statements_.find_batch(claims, others))) {
      auto row = row_of(fields);
      if (row && !row->free && !row->lease)
        batch.items[fields[6].template as<std::size_t>()] = std::move(row->found);
    }
  }

  const Statements& statements_;
  const PostgresOptions& options_;
  const Connector& connector_;
  Pool& pool_;
  Spelling spelling_;
};

}  // namespace idem::postgres::detail
