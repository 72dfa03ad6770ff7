// SPDX-License-Identifier: MIT
#include <idem/postgres/claim.hpp>

#include <future>
#include <string>

#include "postgres/playground.hpp"
#include "support/catch.hpp"

using namespace idem;
using namespace idem::tests;
using idem::postgres::claim;
using idem::postgres::Claimed;

namespace {

struct Shop {
  explicit Shop(const std::string& prefix) : place{prefix} {
    PostgresStore{server_dsn(), place.options()}.create_schema();
  }
  Playground place;
};

const Fingerprint what = fingerprint_of(std::string{"this"});
const Fingerprint other = fingerprint_of(std::string{"that"});

}  // namespace

TEST_CASE("a claim is fresh once, and commits with its transaction") {
  Shop shop{"cl_fresh"};
  const Key key{"", "c", "e"};
  const auto claim_and = [&](bool commits) {
    pqxx::connection connection{server_dsn()};
    pqxx::work tx{connection};
    const auto answer = claim(tx, key, what, shop.place.schema());
    // Usable after every answer.
    shop.place.write(tx, answer == Claimed::fresh ? "fresh" : "again");
    if (commits) tx.commit();
    return answer;
  };
  CHECK(claim_and(false) == Claimed::fresh);
  CHECK(claim_and(true) == Claimed::fresh);
  CHECK(claim_and(true) == Claimed::duplicate);
  CHECK(shop.place.effect_ids() == "again,fresh");
}

TEST_CASE("a second claim in the same transaction is a duplicate") {
  Shop shop{"cl_same"};
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  CHECK(claim(tx, Key{"", "c", "e"}, what, shop.place.schema()) == Claimed::fresh);
  CHECK(claim(tx, Key{"", "c", "e"}, what, shop.place.schema()) == Claimed::duplicate);
}

TEST_CASE("a claim compares fingerprints where it can") {
  Shop shop{"cl_mismatch"};
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  const std::string schema = shop.place.schema();
  CHECK(claim(tx, Key{"", "c", "e"}, what, schema) == Claimed::fresh);
  CHECK(claim(tx, Key{"", "c", "e"}, other, schema) == Claimed::mismatch);
  CHECK(claim(tx, Key{"", "c", "e"}, Fingerprint{}, schema) == Claimed::duplicate);
  CHECK(claim(tx, Key{"", "c", "e"}, fingerprint_of(Revision{2}, std::string{"that"}), schema) ==
        Claimed::duplicate);
  CHECK(claim(tx, Key{"t", "c", "e"}, Fingerprint{}, schema) == Claimed::fresh);
  CHECK(claim(tx, Key{"t", "c", "e"}, other, schema) == Claimed::duplicate);
  tx.commit();
}

TEST_CASE("a claim and a consumer see each other") {
  Shop shop{"cl_consumer"};
  const std::string id = GENERATE(as<std::string>(), "e", "caf\xC3\xA9", "'\\", "\xC2\xA0");
  const std::string encoding = GENERATE(as<std::string>(), "UTF8", "LATIN1");
  const std::string format = GENERATE(as<std::string>(), "hex", "escape");
  const std::string conforming = GENERATE(as<std::string>(), "on", "off");
  CAPTURE(id, encoding, format, conforming);
  PostgresStore store{server_dsn(), shop.place.options()};
  IdempotentConsumer consumer{"c", store, [](postgres::Transaction&, const Note&) {}};
  pqxx::connection connection{"options='-c client_encoding=" + encoding + " -c bytea_output=" + format +
                              " -c standard_conforming_strings=" + conforming + "'"};
  Note first{id, "this", id};
  CHECK(told(consumer(first)) == "applied");
  {
    pqxx::work tx{connection};
    CHECK(claim(tx, Key{id, "c", id}, what, shop.place.schema()) == Claimed::duplicate);
    CHECK(claim(tx, Key{id, "c", id}, other, shop.place.schema()) == Claimed::mismatch);
    CHECK(claim(tx, Key{id, "c", "2" + id}, what, shop.place.schema()) == Claimed::fresh);
    tx.commit();
  }
  CHECK(told(consumer(Note{"2" + id, "this", id})) == "duplicate");
  CHECK(told(consumer(Note{"2" + id, "that", id})) == "mismatch mismatch");
}

TEST_CASE("a claim within a subtransaction goes with it") {
  Shop shop{"cl_sub"};
  pqxx::connection connection{server_dsn()};
  pqxx::work tx{connection};
  const Key key{"", "c", "e"};
  {
    pqxx::subtransaction abandoned{tx};
    CHECK(claim(abandoned, key, what, shop.place.schema()) == Claimed::fresh);
  }
  {
    pqxx::subtransaction kept{tx};
    CHECK(claim(kept, key, what, shop.place.schema()) == Claimed::fresh);
    kept.commit();
  }
  CHECK(claim(tx, key, what, shop.place.schema()) == Claimed::duplicate);
  tx.commit();
  CHECK(shop.place.count("keys") == "1");
}

TEST_CASE("a claim waits for another transaction and answers as it ended") {
  Shop shop{"cl_wait"};
  const bool commits = GENERATE(true, false);
  pqxx::connection holder{server_dsn()};
  pqxx::work held{holder};
  CHECK(claim(held, Key{"", "c", "e"}, what, shop.place.schema()) == Claimed::fresh);
  const int pid = pid_of(held);
  auto answer = std::async(std::launch::async, [&] {
    pqxx::connection connection{server_dsn()};
    pqxx::work tx{connection};
    return claim(tx, Key{"", "c", "e"}, what, shop.place.schema());
  });
  try {
    await_waiter_behind(pid);
  } catch (const std::exception& e) {
    UNSCOPED_INFO(e.what());
  }
  if (commits)
    held.commit();
  else
    held.abort();
  CHECK(answer.get() == (commits ? Claimed::duplicate : Claimed::fresh));
}

TEST_CASE("a claim of a row that row security hides is a mistake of the set-up") {
  Shop shop{"cl_hidden"};
  const Role role;
  role.may_work_in(shop.place);
  execute("INSERT INTO " + shop.place.keys() + " VALUES ('', 'c', 'e', gen_random_uuid()); ALTER TABLE " +
          shop.place.keys() + " ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON " + shop.place.keys() +
          " FOR SELECT USING (fingerprint IS NOT NULL); " + "CREATE POLICY made ON " + shop.place.keys() +
          " FOR INSERT WITH CHECK (true)");
  pqxx::connection connection{role.dsn()};
  pqxx::work tx{connection};
  CHECK(refusal([&] {
          return claim(tx, Key{"", "c", "e"}, what, shop.place.schema());
        }).find("row security") != std::string::npos);
}

TEST_CASE("a claim in a transaction of the caller's is the driver's to fail") {
  Shop shop{"cl_fails"};
  pqxx::connection connection{server_dsn()};
  {
    pqxx::work tx{connection};
    CHECK_THROWS_AS(claim(tx, Key{"", "c", "e"}, what, shop.place.schema() + "_not"), pqxx::sql_error);
  }
  pqxx::work tx{connection};
  CHECK(claim(tx, Key{"", "c", "e"}, what, shop.place.schema()) == Claimed::fresh);
}
