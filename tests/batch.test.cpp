// SPDX-License-Identifier: MIT
#include <idem/batch.hpp>

#include <algorithm>

#include "conformance/batches.hpp"
#include "support/catch.hpp"

namespace idem::tests::batches {

namespace {

struct Booked {
  std::vector<std::string> ids;
};

class InMemory {
 public:
  using Transaction = MemoryStore<Booked>::Transaction;
  MemoryStore<Booked>& store() { return store_; }
  void book(Transaction& tx, const std::string& id) { tx.state().ids.push_back(id); }
  [[nodiscard]] std::vector<std::string> booked() const {
    auto ids = store_.state().ids;
    std::sort(ids.begin(), ids.end());
    return ids;
  }

 private:
  MemoryStore<Booked> store_;
};

BatchReport<std::monostate> report_with(const std::vector<Action>& actions) {
  BatchReport<std::monostate> report;
  for (const Action action : actions) report.outcomes.push_back({.action = action});
  return report;
}

}  // namespace

TEST_CASE("batches in memory") { batch_behaviours<InMemory>(); }

TEST_CASE("SQS is told the ids of what is not acknowledged, in compact JSON") {
  const auto report =
      report_with({Action::acknowledge, Action::redeliver, Action::acknowledge, Action::dead_letter});
  CHECK(sqs_batch_response(report, [](std::size_t i) { return "m" + std::to_string(i); }) ==
        R"({"batchItemFailures":[{"itemIdentifier":"m1"},{"itemIdentifier":"m3"}]})");
  CHECK(sqs_batch_response(report, [](std::size_t) { return "a\"b\\c\n"; }) ==
        R"({"batchItemFailures":[{"itemIdentifier":"a\"b\\c\u000a"},{"itemIdentifier":"a\"b\\c\u000a"}]})");
  CHECK(sqs_batch_response(report_with({Action::acknowledge}), [](std::size_t) { return ""; }) ==
        R"({"batchItemFailures":[]})");
}

TEST_CASE("an empty id would fail the whole batch at SQS, and throws") {
  CHECK_THROWS_AS(sqs_batch_response(report_with({Action::redeliver}), [](std::size_t) { return ""; }),
                  std::invalid_argument);
}

TEST_CASE("an offset is committed up to the first message that is not acknowledged") {
  CHECK(first_unacknowledged(report_with({Action::acknowledge, Action::redeliver, Action::dead_letter})) ==
        1);
  CHECK(first_unacknowledged(report_with({Action::acknowledge})) == std::nullopt);
  CHECK(first_unacknowledged(report_with({})) == std::nullopt);
}

}  // namespace idem::tests::batches
