// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/postgres/detail/pqxx.hpp>

namespace idem::postgres::detail {

/// The name of a prepared statement: the same for the same text, and in practice for no other.
[[nodiscard]] inline std::string name_of(std::string_view what, std::string_view sql) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a: the same in every build
  for (const char c : sql) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return fmt::format("idem_{}_{:016x}", what, hash);
}

/// The callers' statements that one session knows: planning them again and again is much of what a short one
/// costs.
///
/// It is bounded, for a caller may build his texts as he goes: the first 64 are known, if they are short.
class PreparedTexts {
 public:
  /// The name to call a text by, which is prepared if need be; nullptr: there is no room for it.
  [[nodiscard]] const std::string* now(pqxx::connection& connection, const std::string& sql) {
    Entry* const entry = entry_of(sql);
    return entry == nullptr ? nullptr : prepared(connection, *entry);
  }

  /// As `now`, from the second time on that the session meets the text: a text of one use is not worth it.
  [[nodiscard]] const std::string* when_met_again(pqxx::connection& connection, const std::string& sql) {
    const std::size_t known = entries_.size();
    Entry* const entry = entry_of(sql);
    return entry == nullptr || entries_.size() > known ? nullptr : prepared(connection, *entry);
  }

 private:
  static constexpr std::size_t most_texts = 64;
  static constexpr std::size_t longest_text = 8192;

  struct Entry {
    std::string sql;
    std::string name = {};  ///< once it is prepared
  };

  [[nodiscard]] Entry* entry_of(const std::string& sql) {
    for (Entry& entry : entries_)
      if (entry.sql == sql) return &entry;
    if (entries_.size() >= most_texts || sql.size() > longest_text) return nullptr;
    return &entries_.emplace_back(Entry{sql});
  }

  /// Throws: the driver's errors; the text is not prepared then.
  [[nodiscard]] static const std::string* prepared(pqxx::connection& connection, Entry& entry) {
    if (entry.name.empty()) {
      std::string name = name_of("effect", entry.sql);
      prepare_one(connection, name, entry.sql);
      entry.name = std::move(name);
    }
    return &entry.name;
  }

  std::vector<Entry> entries_ = {};
};

}  // namespace idem::postgres::detail
