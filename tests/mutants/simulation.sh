#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What a careless consumer, store or relay would do, and the rule by which the simulation notices. What PostgreSQL's
# own statements promise is put wrong in the simulation's database.

. "$(dirname "$0")/../support/mutants.sh"
needs fmt libcrypto
flags="-I$work/tests $flags"  # a copy of one of the simulation's headers goes before the original

# noticed REASON NAME HEADER SED: caught, and for that reason.
noticed() {
  reason=$1
  shift
  rm -rf "$work/tests"
  mkdir -p "$work/tests/simulation"
  mutant "$@" simulation/simulation.test.cpp \
    "no schedule of crashes, lost answers, takeovers and redeliveries loses an effect or repeats one"
  if [ "$result" = caught ] && ! tr -s ' \n' '  ' <"$work/log" | grep -qE "$reason"; then
    cat "$work/log" >&2
    echo "  but not because: $reason" >&2
    caught=$((caught - 1)) missed=$((missed + 1))
  fi
}
database=../../tests/simulation/database.hpp
relay=../../tests/simulation/relay.hpp

noticed "acknowledged without its effect" "an event is marked before the work" detail/lease_delivery.hpp \
  's/^( *)return work\(lease\);/\1static_cast<void>(store_.complete(claim_, *grant_, std::nullopt));\n\1return work(lease);/'
noticed "acknowledged without its effect" "an unresolved doubt is acknowledged" detail/delivery.hpp \
  's/if \(claim_\.doubted\) return unresolved\(\);/if (claim_.doubted) return decide(Committed{});/'
noticed "acknowledged without its effect" "an aborted doubt is taken as committed" detail/delivery.hpp \
  's/^( *)(const RetryStep step = this->ask_policy\(ErrorClass::in_doubt\);)/\1\2\n\1this->applied();\n\1throw GiveBack{};/'
noticed "rejected, and its effect is there or may come" "a doubt is answered by a look, not by a claim" \
  detail/delivery.hpp \
  's/claim_\.on_concurrent = Concurrent::wait;/claim_.on_concurrent = Concurrent::defer;/
   s/^( *)if \(claim_\.doubted\) return give_up_waiting\(\);/\1if (claim_.doubted) {\n\1  claim_.doubted.reset();\n\1  return this->failed({.failure = {ErrorClass::transient, "40000", "not there"}});\n\1}/'
noticed "acknowledged without its effect" "a finished key is cached before COMMIT" detail/delivery.hpp \
  's/^( *)return effect\(tx\);/\1finished().push_back(this->key_);\n\1return effect(tx);/
   s/^( *)(Applied met = this->ask_store\()/\1for (const Key\& key : finished())\n\1  if (key == this->key_ \&\& this->attempts_ == 0) return this->found({}), this->end(resolved_);\n\1\2/
   s/^( *)(struct GiveBack \{\};)/\1\2\n\1static std::vector<Key>\& finished() {\n\1  static std::vector<Key> keys;\n\1  if (keys.size() > 50) keys.clear();\n\1  return keys;\n\1}/'
noticed "a successor's lease was touched" "a lease is released without its token" "$database" \
  '/Held release\(/,/^  \}/s/held_row\(claim\.key, grant\)/\&database_.row_to_write(claim.key)/'
noticed "a lease (outlived its length|was granted while another was live)" "a lease ends by the worker's clock" "$database" \
  's/taken\.lease_ends = now\(\) \+ \*lease/taken.lease_ends = now() + std::chrono::seconds{call_ % 3} + *lease/'
noticed "a lease (outlived its length|was granted while another was live)" "a lease is extended from its end" "$database" \
  's/row->lease_ends = now\(\) \+ length/row->lease_ends = *row->lease_ends + length/'
noticed "a fencing token did not grow" "fencing tokens are counted per key" "$database" \
  's/database_\.next_fence\(\)\}/row == nullptr ? 1 : row->fence + 1}/'
noticed "the effect is there twice" "a claim does not wait for a COMMIT that is still running" "$database" \
  's/if \(database_\.running\(claim\.key\)\) \{/if (false) {/'
noticed "a message was published before an earlier one of its key" "a relay does not sort" "$relay" \
  's/return rows\(\)\[a\]\.seq < rows\(\)\[b\]\.seq/return a < b/'
noticed "a message was (never published|published before an earlier one)" "a relay goes on behind the last message it saw" "$relay" \
  's/if \(!rows\(\)\[i\]\.sent\) unsent/if (!rows()[i].sent \&\& rows()[i].seq > cursor_) unsent/
   s/^( *)(row\.published = true;)/\1\2\n\1if (row.seq > cursor_) cursor_ = row.seq;/
   s/^( *)int name_;/\1std::uint64_t cursor_ = 0;\n\1int name_;/'

verdict
