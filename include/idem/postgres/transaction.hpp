// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/publishing.hpp>
#include <idem/key.hpp>
#include <idem/outbox.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/session.hpp>

namespace idem::postgres {

namespace detail {
class Attempt;
}

class Transaction;
inline std::string enqueue(Transaction& tx, const OutboxMessage& message);

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

  /// What `exec` does with a statement: one that this session met before is prepared, and the state of the error
  /// that made the transaction fail is kept, for what a later 25P02 hides.
  pqxx::result run(const std::string& sql, const std::vector<detail::TextParameter>& parameters) {
    const std::string* prepared = nullptr;
    bool preparing = session_ != nullptr;
    try {
      if (preparing) prepared = session_->texts.when_met_again(*session_->connection, sql);
      preparing = false;
      pqxx::result rows = prepared != nullptr ? detail::exec_prepared(*this, *prepared, parameters)
                                              : detail::exec_with(*this, sql, parameters);
      first_error_.clear();  // it has not failed, or no more
      return rows;
    } catch (const std::exception&) {
      if (const auto error = detail::current_driver_error()) {
        if (first_error_.empty()) first_error_ = error->sqlstate;
        const bool unknown = prepared != nullptr && error->sqlstate == "26000";
        if (unknown || (preparing && error->sqlstate == "42P05")) unprepared_ = true;
        if (unprepared_ || (prepared != nullptr && error->sqlstate == "0A000")) stale_plan_ = true;
      }
      throw;
    }
  }

  /// Says for which event, or events, the handler works that is called next: not the handler's to call.
  void working_on(const Key& key) { publishing_ = idem::detail::Publishing::for_event(key); }
  void working_on(std::span<const Key* const> keys) {
    publishing_ = idem::detail::Publishing::for_events(keys);
  }

 private:
  friend detail::Attempt;
  friend std::string enqueue(Transaction& tx, const OutboxMessage& message);

  enum class Stage { opening, handler_at_work, committing, over };

  explicit Transaction(pqxx::connection& connection)
      : detail::DriverName{"idem::postgres::Transaction"}, detail::DriverTransaction{connection} {}

  /// For which event a message is stored now.
  [[nodiscard]] idem::detail::Publishing publishing() const {
    return stage_ == Stage::handler_at_work ? publishing_ : idem::detail::Publishing{};
  }

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
  detail::Session* session_ = nullptr;  ///< where statements may be prepared
  bool unprepared_ = false;  ///< it knows another set of them than we do: there is a pooler between
  bool stale_plan_ = false;  ///< a prepared one could not be used: so, or as its table was changed
  std::string schema_;
  idem::detail::Publishing publishing_;
};

}  // namespace idem::postgres
