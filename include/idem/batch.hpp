// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/outcome.hpp>

namespace idem {

/// What became of a batch: an outcome for each message, in the same order.
template <class R>
struct [[nodiscard]] BatchReport {
  std::vector<Outcome<R>> outcomes = {};

  /// The indices of what is not to be acknowledged, ascending.
  [[nodiscard]] std::vector<std::size_t> failed() const {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < outcomes.size(); ++i)
      if (outcomes[i].action != Action::acknowledge) indices.push_back(i);
    return indices;
  }

  [[nodiscard]] bool all_acknowledged() const { return failed().empty(); }
};

/// The first message that is not to be acknowledged: a transport that commits an offset, or a sequence
/// number, commits up to it. nullopt: all of them are.
template <class R>
[[nodiscard]] std::optional<std::size_t> first_unacknowledged(const BatchReport<R>& report) {
  const auto failed = report.failed();
  return failed.empty() ? std::nullopt : std::optional{failed.front()};
}

namespace detail {

inline void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  json += '"';
}

}  // namespace detail

/// The answer of a Lambda function to SQS (ReportBatchItemFailures): `{"batchItemFailures":[…]}`.
///
/// `id_of(index)` gives a message's id. Throws: std::invalid_argument — an id is empty: SQS would take the
/// whole batch for failed.
template <class R, class IdOf>
[[nodiscard]] std::string sqs_batch_response(const BatchReport<R>& report, IdOf id_of) {
  std::string json = R"({"batchItemFailures":[)";
  std::string_view separator = "";
  for (const std::size_t index : report.failed()) {
    const std::string id{std::invoke(id_of, index)};
    if (id.empty())
      throw std::invalid_argument{
          fmt::format("sqs_batch_response: the id of message {} is empty; return its messageId", index)};
    json += separator;
    json += R"({"itemIdentifier":)";
    detail::append_json_string(json, id);
    json += '}';
    separator = ",";
  }
  return json += "]}";
}

}  // namespace idem
