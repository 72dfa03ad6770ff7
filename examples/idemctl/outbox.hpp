// SPDX-License-Identifier: MIT
#pragma once

// outbox list, retry

#include <cstdint>
#include <string>
#include <vector>

#include "desk.hpp"

namespace idemctl {

[[nodiscard]] inline idem::postgres::OutboxFilter messages(const Options& options) {
  using idem::postgres::OutboxState;
  const auto state = options.one_of(
      "--state", {OutboxState::waiting, OutboxState::parked, OutboxState::sending, OutboxState::dead},
      [](OutboxState one) { return to_string(one); });
  return {.state = state,
          .topic = options.value("--topic"),
          .tenant = options.value("--tenant"),
          .key = options.value("--key"),
          .id = options.value("--id")};
}

/// Never what the messages say.
inline int outbox_list(Desk& desk) {
  std::vector<Json> rows;
  for (const auto& entry :
       idem::postgres::Outbox{desk.store}.list(messages(desk.options), desk.options.limit()))
    rows.push_back({{"id", entry.id},
                    {"state", std::string{to_string(entry.state)}},
                    {"topic", entry.topic},
                    {"tenant", entry.tenant},
                    {"key", entry.key},
                    {"consumer", entry.consumer},
                    {"event", entry.event_id},
                    {"attempts", entry.attempts},
                    {"enqueued_at", time_text(entry.enqueued_at)},
                    {"due_at", time_text(entry.due_at)},
                    {"last_error", entry.last_error}});
  print(rows, desk.format);
  return done;
}

inline int outbox_retry(Desk& desk) {
  using idem::postgres::OutboxState;
  auto filter = messages(desk.options);
  desk.options.demand_one_way(
      "outbox retry",
      {filter.state || filter.topic || filter.tenant || filter.key || filter.id, desk.options.has("--all")},
      "a filter (--topic, --state dead, ...) or --all");
  if (filter.state == OutboxState::waiting || filter.state == OutboxState::sending)
    throw UsageError{"outbox retry takes messages that are dead or parked: the others are on their way"};
  if (desk.options.has("--all")) filter.state = OutboxState::dead;
  idem::postgres::Outbox outbox{desk.store};
  std::uint64_t retried = 0;
  if (desk.dry_run()) {
    for (const auto state : {OutboxState::dead, OutboxState::parked}) {
      if (filter.state.value_or(state) != state) continue;
      auto some = filter;
      some.state = state;
      retried += outbox.list(some, most).size();
    }
  } else {
    retried = outbox.retry(filter);
  }
  desk.print_changed("retried", retried);
  return done;
}

}  // namespace idemctl
