// SPDX-License-Identifier: MIT
#pragma once

// Two consumers as people write them without a library: careful, and wrong. Each step is a transaction of its
// own, written so that it may be repeated, and retried on a new connection when anything goes wrong.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <pqxx/pqxx>

#include <idem/postgres/exec.hpp>

namespace webhook_ledger::naive {

using idem::postgres::exec;
using Step = std::function<void(pqxx::transaction_base&)>;

enum class Answer { done, duplicate, failed };

/// Runs the step and commits it, up to five times.
[[nodiscard]] inline bool commit_with_retries(const std::string& dsn, const Step& step) {
  static thread_local std::unique_ptr<pqxx::connection> connection;
  for (int attempt = 0; attempt < 5; ++attempt) {
    try {
      if (!connection) connection = std::make_unique<pqxx::connection>(dsn);
      pqxx::work transaction{*connection};
      step(transaction);
      transaction.commit();
      return true;
    } catch (const std::exception&) {
      connection.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds{5} * (1 << attempt));
    }
  }
  return false;
}

/// "First say that it is mine, then nobody else does it."
///
/// Loses the effect when the process dies in between, or when the answer to the first COMMIT is lost: the
/// retry then finds its own mark and takes it for somebody else's. Doubles it when the answer to the second
/// is.
[[nodiscard]] inline Answer mark_then_work(const std::string& dsn, const std::string& id, const Step& work) {
  bool is_new = false;
  const bool marked = commit_with_retries(dsn, [&](pqxx::transaction_base& tx) {
    const auto inserted = exec(tx, "INSERT INTO processed (id) VALUES ($1) ON CONFLICT DO NOTHING", id);
    is_new = inserted.affected_rows() == 1;
  });
  if (!marked) return Answer::failed;
  if (!is_new) return Answer::duplicate;
  return commit_with_retries(dsn, work) ? Answer::done : Answer::failed;
}

/// "First do it, then say that it is done."
///
/// Doubles the effect when two deliveries come at once, when the process dies in between, and when the answer
/// to the first COMMIT is lost.
[[nodiscard]] inline Answer work_then_mark(const std::string& dsn, const std::string& id, const Step& work) {
  bool is_done = false;
  const bool asked = commit_with_retries(dsn, [&](pqxx::transaction_base& tx) {
    is_done = !exec(tx, "SELECT 1 FROM processed WHERE id = $1", id).empty();
  });
  if (!asked) return Answer::failed;
  if (is_done) return Answer::duplicate;
  if (!commit_with_retries(dsn, work)) return Answer::failed;
  const bool marked = commit_with_retries(dsn, [&](pqxx::transaction_base& tx) {
    exec(tx, "INSERT INTO processed (id) VALUES ($1) ON CONFLICT DO NOTHING", id);
  });
  return marked ? Answer::done : Answer::failed;
}

}  // namespace webhook_ledger::naive
