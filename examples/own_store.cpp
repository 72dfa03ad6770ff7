// SPDX-License-Identifier: MIT
// A store of one's own: what a consumer needs for effects outside a database, and nothing more.

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

// [own_store]
#include <idem/idem.hpp>

using namespace std::chrono_literals;

class OwnStore {  // models idem::LeaseStore: what each verb owes its caller is written there
 public:
  idem::Acquired acquire(const idem::Claim& claim, std::optional<idem::Duration> lease) {
    const std::lock_guard lock{mutex_};
    const auto row = rows_.find(claim.key);
    if (row != rows_.end() && !row->second.is_over()) {
      if (row->second.done) return row->second.found;
      return row->second.ends ? idem::Leased{*row->second.ends - Clock::now()} : idem::Leased{};
    }
    if (claim.window && claim.occurred_at && *claim.occurred_at < Clock::now() - *claim.window)
      return idem::BeyondWindow{};
    const idem::Grant grant{.fence = ++last_fence_};  // grows for ever, over all keys
    rows_.insert_or_assign(
        claim.key,
        Row{.found = {.fingerprint = claim.fingerprint}, .fence = grant.fence, .ends = after(lease)});
    return grant;
  }
  idem::Held extend(const idem::Claim& claim, const idem::Grant& grant, idem::Duration length) {
    return change(claim, grant, [&](Row& row) { row.ends = row.ends ? after(length) : std::nullopt; });
  }
  idem::Held release(const idem::Claim& claim, const idem::Grant& grant) {
    return change(claim, grant, [](Row& row) { row.ends = Clock::now(); });
  }
  idem::Held complete(const idem::Claim& claim, const idem::Grant& grant, const idem::StoredValue& value) {
    return change(
        claim, grant,
        [&](Row& row) {
          row.found.value = value;
          row.ends = after(claim.window);
          row.done = true;
        },
        idem::Kept{});  // done before by this grant: its answer was lost
  }

 private:
  using Clock = std::chrono::system_clock;
  struct Row {
    idem::Found found = {};
    std::uint64_t fence = 0;
    std::optional<Clock::time_point> ends = {};  // of the lease, then of the window; none: never
    bool done = false;
    [[nodiscard]] bool is_over() const { return ends && *ends <= Clock::now(); }
  };
  static std::optional<Clock::time_point> after(std::optional<idem::Duration> span) {
    if (!span) return std::nullopt;
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(*span);
  }
  template <class Change>
  idem::Held change(const idem::Claim& claim, const idem::Grant& grant, Change change,
                    idem::Held when_done = idem::Lost{}) {
    const std::lock_guard lock{mutex_};
    const auto row = rows_.find(claim.key);
    if (row == rows_.end() || row->second.fence != grant.fence) return idem::Lost{};
    if (row->second.done) return when_done;
    change(row->second);
    return idem::Kept{};
  }

  std::mutex mutex_;
  std::unordered_map<idem::Key, Row> rows_;
  std::uint64_t last_fence_ = 0;
};
static_assert(idem::LeaseStore<OwnStore>);
// [own_store]

struct Job {
  std::string id;
  int pages = 1;
};
idem::Event event_of(const Job& job) {
  return {.id = job.id, .fingerprint = idem::fingerprint_of(job.pages)};
}

int main() {
  OwnStore store;
  int runs = 0;
  const idem::IdempotentConsumer print{"print.v1", store,
                                       [&](idem::Lease& lease, const Job& job) {
                                         if (++runs == 1) throw idem::TransientError{"out of paper"};
                                         lease.extend(1min);
                                         return job.pages * 2;
                                       },
                                       idem::ConsumerOptions{.lease = 30s}};
  const bool as_promised = print(Job{"j-1", 4}).status == idem::Status::deferred &&
                           print(Job{"j-1", 4}).status == idem::Status::applied &&
                           print(Job{"j-1", 4}).value == 8 &&
                           print(Job{"j-1", 4}).status == idem::Status::duplicate &&
                           print(Job{"j-1", 5}).status == idem::Status::mismatch && runs == 2;
  std::cout << "started " << runs << " times, printed once\n";
  return as_promised ? EXIT_SUCCESS : EXIT_FAILURE;
}
