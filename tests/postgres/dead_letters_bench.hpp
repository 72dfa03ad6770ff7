// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "postgres/playground.hpp"

namespace idem::tests::mourning {

/// A message whose bytes are "id|text|tenant".
struct Parcel {
  std::string id;
  std::string text = {};
  std::string tenant = {};
  std::int64_t delivery_count = 1;
  std::string bytes = id + '|' + text + '|' + tenant;
};

[[nodiscard]] inline Event event_of(const Parcel& parcel) {
  return {.tenant = parcel.tenant,
          .id = parcel.id,
          .fingerprint = fingerprint_of(parcel.text),
          .ordering_key = "lane of " + parcel.id,
          .payload = parcel.bytes,
          .delivery_count = parcel.delivery_count,
          .occurred_at = std::chrono::system_clock::time_point{std::chrono::seconds{1'700'000'000}}};
}

[[nodiscard]] inline Parcel parcel_of(std::string_view bytes) {
  const auto first = bytes.find('|');
  const auto second = bytes.find('|', first + 1);
  if (second == std::string_view::npos) throw std::runtime_error{"no parcel"};
  return {.id = std::string{bytes.substr(0, first)},
          .text = std::string{bytes.substr(first + 1, second - first - 1)},
          .tenant = std::string{bytes.substr(second + 1)}};
}

[[nodiscard]] inline Parcel decoded(const postgres::StoredDeadLetter& letter) {
  return parcel_of(letter.payload.value());
}

inline constexpr postgres::KeepPayload keep = postgres::KeepPayload::yes;

/// A store with its tables, a handler that fails for the ids it is told, and dead letters that keep payloads.
class Morgue : public Playground {
 public:
  explicit Morgue(postgres::DeadLetterOptions options = {.payload = keep}, std::string dsn = server_dsn(),
                  Runtime runtime = {})
      : Playground{"letters", dsn}, store_{std::move(dsn), Playground::options()} {
    store_.create_schema();
    dead_.emplace(store_, std::move(options), std::move(runtime));
  }

  [[nodiscard]] PostgresStore& store() { return store_; }
  [[nodiscard]] postgres::DeadLetters& dead() { return *dead_; }

  /// Why the handler refuses an id; what is not here is written to `effects`.
  std::function<std::optional<std::string>(const std::string& id)> why = [](const std::string&) {
    return std::optional<std::string>{"it is broken"};
  };
  void mend() {
    why = [](const std::string&) { return std::nullopt; };
  }

  [[nodiscard]] auto handler() const {
    return [this](postgres::Transaction& tx, const Parcel& parcel) {
      write(tx, parcel.id);
      if (const auto reason = why(parcel.id)) throw PermanentError{*reason};
    };
  }
  [[nodiscard]] auto ship() { return IdempotentConsumer{"ship.v1", store_, handler(), *dead_}; }

  /// Lets the parcels die.
  void kill(const std::vector<std::string>& ids) {
    const IdempotentConsumer mortal{
        "ship.v1", store_,
        [](postgres::Transaction&, const Parcel&) { throw PermanentError{"it is broken"}; }, *dead_};
    for (const std::string& id : ids)
      if (mortal(Parcel{.id = id, .text = "text of " + id}).action != Action::acknowledge)
        throw std::runtime_error{"not recorded: " + id};
  }

  [[nodiscard]] std::string letters() const { return schema() + ".dead_letters"; }
  /// One value of each letter, in their order.
  [[nodiscard]] std::string all(const std::string& expression) const {
    return value("SELECT coalesce(string_agg((" + expression + ")::text, ',' ORDER BY id), '') FROM " +
                 letters());
  }

 private:
  PostgresStore store_;
  std::optional<postgres::DeadLetters> dead_ = {};
};

/// What std::invalid_argument says; empty when it is not thrown.
template <class Work>
[[nodiscard]] std::string refused(Work work) {
  try {
    static_cast<void>(work());
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return {};
}

}  // namespace idem::tests::mourning
