// SPDX-License-Identifier: MIT
#pragma once

// schema, check, stats

#include <iostream>

#include "desk.hpp"

namespace idemctl {

inline int schema(Desk& desk) {
  std::cout << (desk.options.has("--roles") ? idem::postgres::roles_sql(desk.schema)
                                            : idem::postgres::schema_sql(desk.schema));
  return done;
}

inline int check(Desk& desk) {
  desk.store.check();
  print_one({{"schema", desk.schema}, {"version", idem::postgres::schema_version}, {"usable", true}},
            desk.format);
  return done;
}

inline int stats(Desk& desk) {
  if (desk.options.has("--prometheus") && desk.format == Format::json)
    throw UsageError{"stats takes --prometheus or --json, not both"};
  const auto numbers = idem::postgres::stats(desk.store);
  if (desk.options.has("--prometheus")) {
    std::cout << idem::postgres::prometheus_text(numbers);
    return done;
  }
  print_one({{"keys", numbers.keys.rows ? Json(*numbers.keys.rows) : Json()},
             {"keys_bytes", numbers.keys.bytes},
             {"keys_ended", numbers.keys.ended},
             {"keys_oldest_ended_seconds", seconds(numbers.keys.oldest_ended_age)},
             {"leases_live", numbers.leases.live},
             {"leases_overdue", numbers.leases.overdue},
             {"leases_oldest_overdue_seconds", seconds(numbers.leases.oldest_overdue_age)},
             {"outbox_claimable", numbers.outbox.claimable},
             {"outbox_oldest_claimable_seconds", seconds(numbers.outbox.oldest_claimable_age)},
             {"outbox_behind", numbers.outbox.behind},
             {"outbox_parked", numbers.outbox.parked},
             {"outbox_sending", numbers.outbox.sending},
             {"outbox_failing", numbers.outbox.failing},
             {"outbox_dead", numbers.outbox.dead},
             {"outbox_bytes", numbers.outbox.bytes},
             {"dead_letters_open", numbers.dead_letters.open},
             {"dead_letters_open_last_hour", numbers.dead_letters.last_hour},
             {"dead_letters_oldest_seconds", seconds(numbers.dead_letters.oldest_age)},
             {"purge_seconds_ago", numbers.purge.age ? Json(seconds(*numbers.purge.age)) : Json()},
             {"purge_rows", numbers.purge.rows},
             {"key_removals", numbers.purge.removals},
             {"schema_version", numbers.schema_version}},
            desk.format);
  return done;
}

}  // namespace idemctl
