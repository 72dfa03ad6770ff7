// SPDX-License-Identifier: MIT
// Effects outside the database, and how the destination helps: an idempotency key, or a fencing token.

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

using namespace std::chrono_literals;

struct Candidate {
  std::string id, address;
};
idem::Event event_of(const Candidate& c) {
  return {.id = c.id, .fingerprint = idem::fingerprint_of(c.address)};
}

/// Stands for a mail provider that knows idempotency keys: a key it has seen sends nothing more.
class Mail {
 public:
  std::string send(const std::string& address, const std::string& idempotency_key) {
    const auto [receipt, is_new] = receipts_.try_emplace(idempotency_key, "receipt for " + address);
    if (!is_new) return receipt->second;
    ++sent;
    throw std::runtime_error{"time-out"};  // it was sent, and nobody heard of it
  }
  int sent = 0;

 private:
  std::map<std::string, std::string> receipts_;
};

// [send_mail]
idem::Outcome<std::string> welcome(idem::PostgresStore& store, Mail& mail, const Candidate& candidate) {
  const idem::IdempotentConsumer send{
      "welcome-email.v1", store,
      [&](idem::Lease& lease, const Candidate& c) {
        return mail.send(c.address, lease.idempotency_key());  // the same over redeliveries and takeovers
      },
      idem::ConsumerOptions{.lease = 30s}};
  return send(candidate);  // later deliveries are given the stored receipt
}

// A destination that knows no such keys can refuse who was overtaken: it keeps the greatest token it has seen.
void update_profile(pqxx::transaction_base& crm, idem::Lease& lease, const Candidate& c) {
  idem::postgres::require_rows(
      1, idem::postgres::exec(
             crm, "UPDATE profiles SET address = $1, last_token = $2 WHERE id = $3 AND last_token <= $2",
             c.address, lease.token(), c.id));
}
// [send_mail]

namespace {

/// An owner that is paused for longer than its lease; its successor has finished when it goes on.
bool overtaken_owner_is_refused(idem::PostgresStore& store, const Candidate& candidate) {
  const auto profile = [](idem::Lease& lease, const Candidate& c) {
    pqxx::connection crm{""};
    pqxx::work tx{crm};
    update_profile(tx, lease, c);
    tx.commit();
  };
  const idem::IdempotentConsumer successor{"profile.v1", store, profile};
  bool refused = false;
  const idem::IdempotentConsumer slow{"profile.v1", store,
                                      [&](idem::Lease& lease, const Candidate& c) {
                                        while (successor(c).status == idem::Status::in_progress) {
                                        }
                                        try {
                                          profile(lease, c);
                                        } catch (const idem::PreconditionFailed&) {
                                          refused = true;
                                          throw;
                                        }
                                      },
                                      idem::ConsumerOptions{.lease = 50ms, .heartbeat = false}};
  return slow(candidate).status == idem::Status::deferred && refused &&
         successor(candidate).status == idem::Status::duplicate;
}

}  // namespace

int main() {
  idem::PostgresStore store{""};
  store.create_schema();
  const Candidate candidate{std::to_string(std::random_device{}()), "ada@example.com"};
  {
    pqxx::connection crm{""};
    pqxx::work tx{crm};
    tx.exec(
        "CREATE TABLE IF NOT EXISTS profiles (id text PRIMARY KEY, address text, last_token bigint NOT NULL DEFAULT 0)");
    idem::postgres::exec(tx, "INSERT INTO profiles (id) VALUES ($1)", candidate.id);
    tx.commit();
  }

  Mail mail;
  const auto lost = welcome(store, mail, candidate);
  const auto sent = welcome(store, mail, candidate);
  const auto again = welcome(store, mail, candidate);
  std::cout << "three deliveries, " << mail.sent << " mail sent, " << again.value.value_or("no receipt")
            << '\n';
  const bool as_promised = lost.status == idem::Status::deferred && sent.status == idem::Status::applied &&
                           again.status == idem::Status::duplicate &&
                           again.value == "receipt for ada@example.com" && mail.sent == 1;
  return as_promised && overtaken_owner_is_refused(store, candidate) ? EXIT_SUCCESS : EXIT_FAILURE;
}
