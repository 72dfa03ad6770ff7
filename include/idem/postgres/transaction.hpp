// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <idem/postgres/detail/pqxx.hpp>

namespace idem::postgres {

namespace detail {
class Attempt;
}

/// The transaction a handler works in: its effect is committed together with the event's key, or not at all.
///
/// A `pqxx::dbtransaction`: everything that takes `pqxx::transaction_base&` or makes a `pqxx::subtransaction`
/// works. Ending it is not the handler's: commit() and abort() are deleted here; called through the base
/// class they do not reach the server, the transaction fails instead, and the message is rejected with
/// `transaction_ended_by_handler`. Return to commit, throw to roll back.
///
/// Thread safety: one thread at a time, as everything in libpqxx.
class Transaction final : public detail::DriverTransaction {
 public:
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction() { close_driver(); }

  void commit() = delete;
  void abort() = delete;

  /// Remembers the state of the error that made this transaction fail, for what a later 25P02 hides. `exec`
  /// calls it, and `note_success` after a statement that went well: then it has not failed, or no more.
  void note_error(std::string_view sqlstate) {
    if (first_error_.empty()) first_error_ = sqlstate;
  }
  void note_success() noexcept { first_error_.clear(); }

 private:
  friend detail::Attempt;

  enum class Stage { opening, handler_at_work, committing, over };

  explicit Transaction(pqxx::connection& connection)
      : detail::DriverName{"idem::postgres::Transaction"}, detail::DriverTransaction{connection} {}

  void on_commit() override {
    if (stage_ != Stage::committing) {
      end_by_handler();
      throw pqxx::usage_error{
          "commit() is not the handler's to call: return, and idem commits the effect with its key"};
    }
    stage_ = Stage::over;
    commit_sent_ = true;
    send(commit_message_);
  }

  void on_abort() override {
    if (stage_ == Stage::handler_at_work) end_by_handler();
  }

  /// Nothing ends on the server, or later statements would be committed one by one: the transaction fails.
  void end_by_handler() {
    ended_by_handler_ = true;
    try {
      send("SELECT 'idem: the handler called commit() or abort() on its transaction'::int");
    } catch (const std::exception&) {  // as meant
    }
  }

  Stage stage_ = Stage::opening;
  bool ended_by_handler_ = false;
  bool commit_sent_ = false;
  std::string commit_message_;
  std::string first_error_;
};

}  // namespace idem::postgres
