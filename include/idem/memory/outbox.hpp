// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <idem/detail/publishing.hpp>
#include <idem/error.hpp>
#include <idem/outbox.hpp>

namespace idem::detail {

/// What the handlers on a store in memory have published, in the order of their commits. Not locked by itself.
class MemoryOutbox {
 public:
  /// What one transaction publishes; gone unless it is given to `commit`.
  class Draft {
   public:
    /// Only the transaction that runs is committed to `outbox`, which outlives the draft.
    explicit Draft(const MemoryOutbox& outbox) : outbox_{outbox} {}

    /// `generation`: which taking of the key this is.
    void work_on(Publishing publishing, std::uint64_t generation) {
      publishing_ = std::move(publishing);
      generation_ = generation;
    }

    std::string add(OutboxMessage message) {
      check_outbox_message(message);
      check_publishing(publishing_, message);
      if (message.id.empty()) message.id = derived_id(publishing_, generation_, 0);  // nothing is ever purged
      std::pair name{publishing_.tenant, message.id};
      if (outbox_.ids_.count(name) != 0 || !ids_.insert(std::move(name)).second)
        throw PermanentError{explain_taken_id(message.id)};
      ++publishing_.position;
      messages_.push_back(std::move(message));
      return messages_.back().id;
    }

   private:
    friend MemoryOutbox;
    const MemoryOutbox& outbox_;
    Publishing publishing_ = {};
    std::uint64_t generation_ = 0;
    std::vector<OutboxMessage> messages_ = {};
    std::set<std::pair<std::string, std::string>> ids_ = {};
  };

  void commit(Draft draft) {
    for (OutboxMessage& message : draft.messages_) messages_.push_back(std::move(message));
    ids_.merge(draft.ids_);
  }

  [[nodiscard]] const std::vector<OutboxMessage>& messages() const noexcept { return messages_; }
  /// Their ids stay taken.
  [[nodiscard]] std::vector<OutboxMessage> take() noexcept { return std::exchange(messages_, {}); }

 private:
  std::vector<OutboxMessage> messages_ = {};
  std::set<std::pair<std::string, std::string>> ids_ = {};  ///< tenant and id
};

}  // namespace idem::detail
