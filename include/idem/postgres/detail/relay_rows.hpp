// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <idem/duration.hpp>
#include <idem/outbox.hpp>
#include <idem/postgres/detail/pqxx.hpp>
#include <idem/postgres/detail/sql_text.hpp>

namespace idem::postgres::detail {

/// A message that is claimed.
struct ClaimedMessage {
  std::int64_t seq = 0;
  std::string lane = {};
  std::size_t place = 0;  ///< among those of its lane
  Outgoing outgoing = {};
};

/// What a claim answered; see RelayStatements::claim.
struct ClaimAnswer {
  std::string last_lane = {};
  bool ended = true;
  Duration next_in = (Duration::max)();
  std::vector<ClaimedMessage> messages = {};  ///< the first of each lane, then the second of each, …
};

/// Headers as names and values in turn, each in hexadecimal and ended by a point.
[[nodiscard]] inline std::map<std::string, std::string> headers_of(std::string_view text) {
  std::map<std::string, std::string> headers;
  const auto next = [&text] {
    const auto end = text.find('.');
    std::string part = bytes_of_hex(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return part;
  };
  while (!text.empty()) {
    std::string name = next();
    headers.insert_or_assign(std::move(name), next());
  }
  return headers;
}

[[nodiscard]] inline ClaimAnswer claim_answer(const pqxx::result& rows) {
  ClaimAnswer answer;
  std::map<std::string, std::size_t, std::less<>> in_lane;
  for (pqxx::result::size_type i = 0; i < rows.size(); ++i) {
    const auto row = rows[i];
    if (i == 0) {
      answer.ended = std::string_view{row[1].c_str()} == "t";
      answer.last_lane = row[2].c_str();
      if (!row[3].is_null())
        answer.next_in =
            (std::max<Duration>)(std::chrono::microseconds{row[3].as<std::int64_t>()}, Duration{0});
    }
    if (row[4].is_null()) continue;
    ClaimedMessage message{.seq = row[4].as<std::int64_t>(), .lane = row[5].c_str()};
    message.place = in_lane[message.lane]++;
    message.outgoing = {.message = {.topic = row[7].c_str(),
                                    .key = row[8].c_str(),
                                    .payload = bytes_of_hex(row[9].c_str()),
                                    .headers = headers_of(row[10].c_str()),
                                    .id = row[6].c_str()},
                        .attempts = row[11].as<std::uint32_t>(),
                        .tenant = row[12].c_str(),
                        .consumer = row[13].c_str(),
                        .event_id = row[14].c_str(),
                        .enqueued_at = std::chrono::system_clock::time_point{
                            std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                std::chrono::microseconds{row[15].as<std::int64_t>()})}};
    answer.messages.push_back(std::move(message));
  }
  std::stable_sort(answer.messages.begin(), answer.messages.end(),
                   [](const auto& a, const auto& b) { return a.place < b.place; });
  return answer;
}

}  // namespace idem::postgres::detail
