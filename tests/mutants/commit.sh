#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What a library that is careless about COMMIT would do, and the tests that notice. Starts a server of its own.

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${IDEM_TEST_PGDATA:-}" ]; then exec "$here/../support/with_postgres.sh" "$here/$(basename "$0")"; fi
. "$here/../support/mutants.sh"
needs libpqxx libpq fmt libcrypto

doubt=faults/doubt.pg.test.cpp
handler=postgres/transaction.pg.test.cpp

mutant "the guard is left out" postgres/detail/statements.hpp \
  's/std::string sql = guard\(xid, spelling\);/std::string sql = "SELECT 1";/' "$handler"
mutant "a doubt is reported as success" detail/delivery.hpp \
  's/^( *)doubt_ = std::move\(in_doubt\.failure\);/\1return decide(Committed{});/' "$doubt"
mutant "a doubt is resolved by a SELECT" postgres/store.hpp \
  's/^( *)Troubles troubles;/\1if (claim.doubted) {\n\1  const auto session = connector_.open();\n\1  pqxx::nontransaction look{*session.connection};\n\1  if (look.exec("SELECT FROM " + postgres::detail::identifier(options_.schema) + ".keys WHERE claim_token = '"'"'" + postgres::detail::hex_of(*claim.doubted) + "'"'"'").empty())\n\1    return Failed{.failure = {ErrorClass::transient, "40000", "rolled back"}};\n\1}\n\1Troubles troubles;/' \
  "$doubt" "a COMMIT that is still running is waited for, not guessed at"
mutant "a connection is used again after a loss" postgres/store.hpp 's/clean = one\.clean\(\);/clean = true;/' \
  "$handler" "the session of a handler that ended its transaction is not used again"
mutant "every attempt has the same token" postgres/store.hpp \
  's/const ClaimToken token = postgres::detail::random_token\(\);/const ClaimToken token{};/' \
  "$doubt" "a doubt whose event another worker applied meanwhile is a duplicate, or a mismatch"
mutant "every aborted doubt is free" retry/loop.hpp 's/if \(!std::exchange\(doubted_, true\)\)/if (true)/' \
  "$doubt" "the first doubt of a call that turns out aborted is free, later ones count as attempts"
mutant "an unresolved doubt is acknowledged" detail/delivery.hpp \
  's/if \(claim_\.doubted\) return unresolved\(\);/if (claim_.doubted) return decide(Committed{});/' "$doubt"
mutant "the fate of a doubt is not looked for" detail/delivery.hpp \
  's/^( *)claim_\.doubted = in_doubt\.token;/\1return unresolved();/' "$doubt"
mutant "a message that does everything does not count its rows" postgres/detail/at_once.hpp \
  's/if \(!statement\.rows\(\)\) return/return/' \
  postgres/statement.pg.test.cpp "an effect that affects other rows than it said is not there, and is left to redelivery"
mutant "a message that does everything has one token for all" postgres/detail/at_once.hpp \
  's/const ClaimToken token = random_token\(\);/const ClaimToken token{};/' \
  faults/statement.pg.test.cpp "a message that does everything and whose answer is lost is told from another's"

verdict
