#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# idemctl.sh IDEMCTL: every verb of the operator's program on the server of the test run (PGHOST, ...), in a schema of
# its own. Uses psql.
set -euo pipefail
idemctl=$1
schema=idemctl_$$
marker="secret-marker-4711"
failures=0

sql() { psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
clean_up() { sql "DROP SCHEMA IF EXISTS $schema CASCADE" >/dev/null 2>&1 || true; }
trap clean_up EXIT

# expect CODE TEXT ARG...: runs it, and demands the exit status and that the output has the text (a grep -E pattern).
expect() {
  local code=$1 text=$2 status=0 output
  shift 2
  output=$("$idemctl" --schema "$schema" "$@" 2>&1) || status=$?
  if [ "$status" -ne "$code" ]; then
    echo "idemctl $*: ended with $status, not $code: $output"
    failures=$((failures + 1))
  elif ! grep -Eq -- "$text" <<<"$output"; then
    echo "idemctl $*: \"$text\" is not in: $output"
    failures=$((failures + 1))
  fi
  if [ "${allow_marker:-}" != yes ] && grep -q "$marker" <<<"$output"; then
    echo "idemctl $*: prints a payload"
    failures=$((failures + 1))
  fi
}

expect 3 'missing' check
expect 3 'missing' stats
expect 2 'no command'
expect 2 'unknown command' frobnicate
expect 2 'unknown option' stats --frobnicate
expect 0 'CREATE TABLE' schema
expect 0 'CREATE ROLE' schema --roles
expect 0 'dead redrive' --help
"$idemctl" --schema "$schema" schema | psql -Xq -v ON_ERROR_STOP=1 >/dev/null 2>&1

sql "INSERT INTO $schema.keys (tenant, consumer, event_id, claim_token, window_ends) VALUES
       ('t', 'pay.v1', 'done', gen_random_uuid(), NULL),
       ('t', 'pay.v1', 'ended', gen_random_uuid(), clock_timestamp() - interval '1 h');
     INSERT INTO $schema.keys (tenant, consumer, event_id, claim_token, committed_at, leased_until)
       VALUES ('t', 'mail.v1', 'leased', gen_random_uuid(), NULL, clock_timestamp() + interval '1 h');
     INSERT INTO $schema.outbox (id, tenant, consumer, event_id, topic, key, payload, dead_at, last_error)
       VALUES ('m-1', 't', 'pay.v1', 'done', 'orders', 'k', '$marker', clock_timestamp(), 'no such topic');
     INSERT INTO $schema.dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code,
         first_message, last_kind, last_code, last_message, attempts, delivery_count, payload, payload_kept)
       SELECT 't', 'pay.v1', 'dead-' || i, '', gen_random_uuid(), 'permanent', '23505', 'taken', 'permanent', '23505',
         'taken', 1, 1, '$marker', 'original' FROM generate_series(1, 3) i"

expect 0 'usable: true' check
expect 0 'dead_letters_open: 3' stats
expect 0 '"outbox_dead": 1' stats --json
expect 0 '^# TYPE idem_' stats --prometheus
expect 0 'dead-2 .*23505' dead list
expect 0 '"event": "dead-3"' dead list --json --consumer pay.v1
expect 0 '\(none\)' dead list --consumer other.v1
expect 0 '^ *3 +pay.v1 +permanent +23505' dead groups
id=$(sql "SELECT id FROM $schema.dead_letters WHERE event_id = 'dead-1'")
expect 0 'first_message: taken' dead show "$id"
allow_marker=yes expect 0 "payload_text: $marker" dead show "$id" --payload
expect 1 'no dead letter' dead show 999999
expect 0 'dead-1' dead redrive --dry-run
expect 5 'DeadLetters::redrive' dead redrive
expect 2 'reason is missing' dead discard "$id"
expect 2 'needs ids, a filter' dead discard --reason "test"
expect 0 'would_be_discarded: 1' dead discard "$id" --reason "test" --dry-run
expect 0 'discarded: 1' dead discard "$id" --reason "test"
expect 0 'would_be_discarded: 2' dead discard --consumer pay.v1 --reason "test" --dry-run
expect 0 'dead_letters_open: 2' stats

expect 0 'm-1 +dead +orders.*no such topic' outbox list
expect 0 '"state": "dead"' outbox list --json --state dead
expect 2 'state is' outbox list --state lost
expect 2 'needs a filter' outbox retry
expect 0 'would_be_retried: 1' outbox retry --topic orders --dry-run
expect 0 'm-1 +dead' outbox list
expect 0 'retried: 1' outbox retry --topic orders
expect 0 'm-1 +waiting' outbox list

expect 0 'state: handled' explain --tenant t --consumer pay.v1 --event done
expect 0 'state: leased' explain --tenant t --consumer mail.v1 --event leased
expect 0 '"open_dead_letters": 1' explain --json --tenant t --consumer pay.v1 --event dead-2
expect 1 'unknown' explain --consumer pay.v1 --event nobody
expect 2 'event is missing' explain --consumer pay.v1
expect 2 'reason is missing' forget --tenant t --consumer pay.v1 --event "done"
expect 0 'would_be_forgotten' forget --tenant t --consumer pay.v1 --event "done" --reason x --dry-run
expect 0 'state: handled' explain --tenant t --consumer pay.v1 --event "done"
expect 0 'reason: sent twice' forget --tenant t --consumer pay.v1 --event "done" --reason 'sent twice'
expect 1 'no key' forget --tenant t --consumer pay.v1 --event "done" --reason x
expect 5 'is leased' forget --tenant t --consumer mail.v1 --event leased --reason x

expect 2 'go together' purge --consumer pay.v1
expect 2 'not a duration' purge --consumer pay.v1 --older-than soon
expect 0 'would_be_removed_keys: 1' purge --dry-run
expect 0 '^keys: 1' purge
expect 0 '^keys: 0' purge
expect 0 '"keys": 0' purge --json --consumer pay.v1 --older-than 30d
expect 3 'cannot be reached' --dsn "host=/nonexistent-idemctl" stats

if [ "$failures" -gt 0 ]; then
  echo "$failures of idemctl's answers are wrong"
  exit 1
fi
echo "idemctl answers as it should"
