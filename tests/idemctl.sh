#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# idemctl.sh IDEMCTL: every verb of the operator's program on the server of the test run (PGHOST, ...), in a schema of
# its own. Uses psql, whose server also parses the JSON.
set -euo pipefail
idemctl=$1
schema=idemctl_$$
marker="secret-marker-4711"
nasty=$'a "quoted" \\ back\nline \t \xc3\xa9'
failures=0
made=  # are there tables?
known= # what was in them last

sql() { PGOPTIONS="" psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
clean_up() { sql "DROP SCHEMA IF EXISTS $schema CASCADE" >/dev/null 2>&1 || true; }
trap clean_up EXIT

wrong() {
  echo "idemctl $*"
  failures=$((failures + 1))
}

# Everything that is in the tables, as one line.
contents() {
  [ -n "$made" ] || return 0
  sql "SELECT md5(string_agg(row, E'\n' ORDER BY row)) FROM (
         SELECT t::text AS row FROM $schema.keys t UNION ALL SELECT t::text FROM $schema.attempts t
         UNION ALL SELECT t::text FROM $schema.outbox t UNION ALL SELECT t::text FROM $schema.dead_letters t
         UNION ALL SELECT t::text FROM $schema.schema_info t) rows"
}

# run CODE ARG...: leaves what it printed in $output, and demands the exit status. Only a verb that changes, ends with 0
# and is no dry run may change anything; what is wrong is told in one line; and nothing tells a payload unasked.
run() {
  local code=$1 status=0 found
  shift
  output=$("$idemctl" --schema "$schema" "$@" 2>&1) || status=$?
  [ "$status" -eq "$code" ] || wrong "$*: ended with $status, not $code: $output"
  case "$code $*" in
    *--dry-run* | [1-9]*)
      found=$(contents)
      [ "$found" = "$known" ] || [ "${allow_change:-}" = yes ] || wrong "$*: changed something"
      known=$found
      ;;
    *discard* | *retry* | *forget* | *purge*) known=$(contents) ;;
  esac
  case $code in [235]) [ "$(wc -l <<<"$output")" -eq 1 ] || wrong "$*: says more than a line: $output" ;; esac
  if [ "${allow_marker:-}" != yes ] && grep -q "$marker" <<<"$output"; then wrong "$*: prints a payload"; fi
}

# expect CODE TEXT ARG...: TEXT, a grep -E pattern, must be in the output.
expect() {
  local code=$1 text=$2
  shift 2
  run "$code" "$@"
  grep -Eq -- "$text" <<<"$output" || wrong "$*: \"$text\" is not in: $output"
}

# expect_json CODE CONDITION ARG...: the output is one JSON document, `doc`, of which the SQL condition holds.
expect_json() {
  local code=$1 condition=$2 holds
  shift 2
  run "$code" "$@" --json
  holds=$(psql -XAtq -v ON_ERROR_STOP=1 -v doc="$output" -v nasty="$nasty" 2>&1 \
    <<<"SELECT $condition FROM (SELECT :'doc'::jsonb AS doc) it") || true
  [ "$holds" = t ] || wrong "$* --json: $condition is \"$holds\" of: $output"
}

# Before there are tables.
expect 3 'missing' check
expect 3 'missing' stats
expect 3 'missing' dead discard --all --reason x
expect 3 'cannot be reached' --dsn "host=/nonexistent-idemctl" check
expect 3 'cannot be reached' --dsn "host=/nonexistent-idemctl" stats
expect 2 'no command'
expect 2 'unknown command' frobnicate
expect 2 'unknown command dead frobnicate' dead frobnicate
expect 2 'unknown option' stats --frobnicate
expect 0 'CREATE TABLE' schema
expect 0 'CREATE ROLE' schema --roles
expect 0 'dead redrive' --help
for verb in schema check stats "dead list" "dead groups" "dead show" "dead discard" "dead redrive" "outbox list" \
  "outbox retry" explain forget purge; do
  # shellcheck disable=SC2086  # two words
  expect 0 "^idemctl $verb.*OPTION" $verb --help
done
"$idemctl" --schema "$schema" schema | psql -Xq -v ON_ERROR_STOP=1 >/dev/null 2>&1
"$idemctl" --schema "$schema" schema --roles | psql -Xq -v ON_ERROR_STOP=1 >/dev/null 2>&1
made=yes

psql -Xq -v ON_ERROR_STOP=1 -v nasty="$nasty" <<EOF_SQL
INSERT INTO $schema.keys (tenant, consumer, event_id, claim_token, window_ends, generation) VALUES
  ('t', 'pay.v1', 'done', gen_random_uuid(), NULL, 1),
  ('t', 'pay.v1', 'soon', gen_random_uuid(), clock_timestamp() + interval '1 h', 3),
  ('t', 'pay.v1', 'ended', gen_random_uuid(), clock_timestamp() - interval '1 h', 1),
  ('t', 'pay.v1', :'nasty', gen_random_uuid(), NULL, 1);
INSERT INTO $schema.keys (tenant, consumer, event_id, claim_token, committed_at) VALUES
  ('t', 'old.v1', 'old', gen_random_uuid(), clock_timestamp() - interval '90 d'),
  ('u', 'old.v1', 'old', gen_random_uuid(), clock_timestamp() - interval '90 d'),
  ('t', 'old.v1', 'dead', gen_random_uuid(), clock_timestamp() - interval '90 d');
INSERT INTO $schema.keys (tenant, consumer, event_id, claim_token, committed_at, leased_until, fence) VALUES
  ('t', 'mail.v1', 'leased', gen_random_uuid(), NULL, clock_timestamp() + interval '1 h', 41),
  ('t', 'mail.v1', 'endless', gen_random_uuid(), NULL, NULL, 42),
  ('t', 'old.v1', 'lapsed', gen_random_uuid(), NULL, clock_timestamp() - interval '90 d', 43);
INSERT INTO $schema.attempts (tenant, consumer, event_id, starts, failures, open_starts, times_done) VALUES
  ('t', 'pay.v1', 'started', 3, 2, ARRAY[gen_random_uuid()], 0), ('t', 'old.v1', 'old', 1, 0, '{}', 0);
INSERT INTO $schema.outbox (id, tenant, consumer, event_id, topic, key, payload, dead_at, due_at, last_error) VALUES
  ('m-1', 't', 'pay.v1', 'done', 'orders', 'k', '$marker', clock_timestamp(), clock_timestamp(), 'no such topic'),
  ('m-2', 't', 'pay.v1', 'done', 'orders', 'k', '$marker', NULL, clock_timestamp() + interval '1 h', 'slow'),
  ('m-3', 't', 'pay.v1', 'done', 'mails', 'k', '$marker', clock_timestamp(), clock_timestamp(), 'no such topic'),
  ('m-4', 't', 'pay.v1', 'done', 'orders', 'free', '$marker', NULL, clock_timestamp(), NULL);
INSERT INTO $schema.outbox (id, tenant, consumer, event_id, topic, key, payload, sent_at) VALUES
  ('m-5', 't', 'pay.v1', 'done', 'orders', 'k', '$marker', clock_timestamp() - interval '30 d');
INSERT INTO $schema.dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code,
    first_message, last_kind, last_code, last_message, attempts, delivery_count, payload, payload_kept)
  SELECT 't', 'pay.v1', event_id, '', gen_random_uuid(), 'permanent', '23505', 'taken', 'permanent', '23505', 'taken',
    1, 1, convert_to('$marker', 'UTF8'), 'original'
  FROM unnest(ARRAY['dead-1', 'dead-2', 'dead-3', :'nasty']) event_id;
INSERT INTO $schema.dead_letters (tenant, consumer, event_id, fingerprint, last_token, first_kind, first_code,
    first_message, last_kind, last_code, last_message, attempts, delivery_count, payload, payload_kept, closed_at,
    closed_as, closed_reason) VALUES
  ('t', 'old.v1', 'dead', '', gen_random_uuid(), 'transient', '40001', 'late', 'transient', '40001', 'late', 1, 1,
    decode(repeat('ff00', 200), 'hex'), 'redacted', NULL, NULL, NULL),
  ('t', 'old.v1', 'closed', '', gen_random_uuid(), 'transient', '40001', 'late', 'transient', '40001', 'late', 1, 1,
    NULL, 'none', clock_timestamp() - interval '30 d', 'discarded', 'told the shop');
EOF_SQL
known=$(contents)
letter() { sql "SELECT id FROM $schema.dead_letters WHERE event_id = '$1'"; }

# Looking.
expect 0 'usable: true' check
expect_json 0 "doc->>'usable' = 'true' AND doc->>'schema' = '$schema'" check
expect 0 'dead_letters_open: 5' stats
expect_json 0 "doc->'outbox_dead' = '2' AND doc->'leases_live' = '2' AND doc->'purge_seconds_ago' = 'null'" stats
expect 0 '^# TYPE idem_' stats --prometheus
expect 2 'not both' stats --prometheus --json

expect 0 'open +t +pay.v1 +dead-2 .*permanent +23505' dead list
expect_json 0 "jsonb_array_length(doc) = 4 AND doc->3->>'event' = :'nasty' AND doc->0->>'event' = 'dead-1'" \
  dead list --consumer pay.v1
expect_json 0 "jsonb_array_length(doc) = 2" dead list --limit 2
expect_json 0 "jsonb_array_length(doc) = 1 AND doc->0->>'event' = 'dead'" dead list --kind transient
expect_json 0 "jsonb_array_length(doc) = 1 AND doc->0->>'state' = 'discarded'" dead list --state closed
expect_json 0 "doc = '[]'" dead list --consumer other.v1
expect 0 '\(none\)' dead list --consumer other.v1
expect 2 'kind is one of transient' dead list --kind odd
expect 0 '^4 +pay.v1 +permanent +23505' dead groups
expect_json 0 "doc->0->'count' = '4' AND doc->1->'count' = '1'" dead groups

id=$(letter dead-1)
expect 0 'first_message: taken' dead show "$id"
expect_json 0 "doc->>'event' = 'dead-1' AND NOT doc ? 'payload_text'" dead show "$id"
allow_marker=yes expect 0 "payload_text: $marker" dead show "$id" --payload
allow_marker=yes expect_json 0 "doc->>'payload_text' = '$marker'" dead show "$id" --payload
expect_json 0 "doc->>'payload_hex' = repeat('ff00', 200)" dead show "$(letter dead)" --payload
expect 0 "payload_hex: (ff00){200}$" dead show "$(letter dead)" --payload
expect 0 'closed_reason: told the shop' dead show "$(letter closed)" --payload
expect 1 'no dead letter' dead show 999999
expect 2 'not a number' dead show first
expect 2 'one id' dead show
expect 0 'dead-1' dead redrive --dry-run
expect_json 0 "jsonb_array_length(doc) = 1 AND doc->0->>'event' = 'dead-2'" dead redrive --dry-run --event dead-2
expect_json 0 "doc = '[]'" dead redrive --dry-run --consumer old.v1 # a redacted payload is for people
expect 5 'DeadLetters::redrive' dead redrive

expect 0 'm-1 +dead +orders.*no such topic' outbox list
expect_json 0 "jsonb_array_length(doc) = 2 AND doc->0->>'state' = 'dead'" outbox list --state dead
expect_json 0 "jsonb_array_length(doc) = 1 AND doc->0->>'event' = 'done'" outbox list --id m-2
expect 2 'state is one of waiting' outbox list --state lost

event=(--tenant t --consumer pay.v1 --event)
expect 0 '^  handled: .* for ever' explain "${event[@]}" "done"
expect 0 'published: 5, of which sent: 1, dead: 2' explain "${event[@]}" "done"
expect 0 '^  handled: .* until 2' explain "${event[@]}" soon
expect 0 'taken 3 times' explain "${event[@]}" soon
expect 0 'free again: .*window ended at' explain "${event[@]}" ended
expect 0 'starts counted: 3, of which failed: 2, .*: 1' explain "${event[@]}" started
expect 0 "dead letter $id is open; it died of permanent 23505: taken" explain "${event[@]}" dead-1
expect 0 'leased until 2' explain --tenant t --consumer mail.v1 --event leased
expect 0 'leased without an end' explain --tenant t --consumer mail.v1 --event endless
expect 0 'free again: its lease ended' explain --tenant t --consumer old.v1 --event lapsed
expect_json 0 "doc->>'state' = 'leased' AND doc->'fencing_token' = '41'" explain --tenant t --consumer mail.v1 --event leased
expect_json 0 "doc->>'state' = 'not handled' AND doc->'open_dead_letters' = '1'" explain "${event[@]}" dead-2
expect_json 0 "doc->>'event' = :'nasty' AND doc->>'state' = 'handled'" explain "${event[@]}" "$nasty"
expect 1 'unknown' explain --consumer pay.v1 --event nobody
expect_json 1 "doc->>'state' = 'unknown'" explain --consumer pay.v1 --event nobody
expect 2 'event is missing' explain --consumer pay.v1
expect 2 'takes no t/pay' explain t/pay.v1/done

# What is not understood is never passed over.
expect 2 'purge takes no --tenant' purge --consumer old.v1 --older-than 30d --tenant t
expect 2 'outbox retry takes no m-1' outbox retry m-1 --topic orders
expect 2 'outbox retry takes no --consumer' outbox retry --topic orders --consumer pay.v1
expect 2 'dead discard takes no --topic' dead discard --consumer pay.v1 --topic orders --reason x
expect 2 'reason needs a value' dead discard --consumer pay.v1 --reason --dry-run
expect 2 'given twice' dead discard --consumer pay.v1 --consumer old.v1 --reason x
expect 2 'takes no value' dead discard --consumer pay.v1 --reason x --dry-run=no
expect 2 'not a number above 0' dead list --limit 0
expect 2 'go together' purge --consumer old.v1
expect 2 'go together' purge --older-than 30d
expect 2 'consumer' purge --consumer ''
expect 2 'not a duration' purge --consumer old.v1 --older-than soon

# Changing, as the role that roles_sql makes for it.
export PGOPTIONS="-c role=idem_operator"
expect 2 'reason is missing' dead discard "$id"
expect 2 'reason is blank' dead discard "$id" --reason ' '
expect 2 'needs ids, a filter' dead discard --reason "test"
expect 2 'one of them' dead discard "$id" --all --reason "test"
expect 0 'would_be_discarded: 1' dead discard "$id" "$(letter closed)" --reason "test" --dry-run
expect 0 '^discarded: 1' dead discard "$id" "$(letter closed)" --reason=--test
expect 0 'closed_reason: --test' dead show "$id"
expect 1 'none of these' dead discard "$id" --reason "test"
expect 1 'none of these' dead discard "$id" --reason "test" --dry-run
expect 0 'would_be_discarded: 3' dead discard --consumer pay.v1 --reason "test" --dry-run
expect_json 0 "doc->'discarded' = '3'" dead discard --consumer pay.v1 --reason "test"
expect 0 '^discarded: 0' dead discard --consumer pay.v1 --reason "test"
expect 0 'dead_letters_open: 1' stats

expect 2 'needs a filter' outbox retry
expect 2 'on their way' outbox retry --state waiting
expect 0 'would_be_retried: 2' outbox retry --topic orders --dry-run
expect 0 'would_be_retried: 2' outbox retry --all --dry-run # dead ones
expect_json 0 "doc->'retried' = '1'" outbox retry --id m-3
expect 0 'retried: 2' outbox retry --topic orders
expect_json 0 "(SELECT bool_and(it->>'state' = 'waiting') FROM jsonb_array_elements(doc) it)" outbox list

expect 2 'reason is missing' forget "${event[@]}" "done"
expect 0 'would_be_forgotten: t/pay.v1/done' forget "${event[@]}" "done" --reason x --dry-run
expect_json 0 "doc->>'reason' = 'sent twice'" forget "${event[@]}" "done" --reason 'sent twice'
expect 0 'not handled' explain "${event[@]}" "done"
for dry in "" --dry-run; do
  # shellcheck disable=SC2086  # nothing, where it is empty
  {
    expect 1 'no key' forget "${event[@]}" "done" --reason x $dry
    expect 5 'is leased' forget --tenant t --consumer mail.v1 --event leased --reason x $dry
    expect 5 'open dead letter' forget --tenant t --consumer old.v1 --event dead --reason x $dry
  }
done
# The purge announces itself before it is refused: a count goes up, and no row goes.
allow_change=yes expect 3 'permission denied' purge
expect 0 'would_be_removed_keys: 1' purge --dry-run

export PGOPTIONS="-c role=idem_janitor"
expect 3 'permission denied' explain "${event[@]}" "done"
expect_json 0 "doc->'would_be_removed_keys' = '1' AND doc->'would_be_removed_messages' = '1'
  AND doc->'would_be_removed_dead_letters' = '1'" purge --dry-run
expect_json 0 "doc->'removed_keys' = '1' AND doc->'removed_messages' = '1' AND doc->'removed_dead_letters' = '1'" purge
expect 0 '^removed_keys: 0' purge --batch 10
# Neither the key that has an open dead letter nor what is leased for ever; the lapsed lease goes.
expect_json 0 "doc->'would_be_removed_keys' = '3' AND doc->'would_be_removed_attempts' = '1'" \
  purge --consumer old.v1 --older-than 30d --dry-run
expect_json 0 "doc->'removed_keys' = '3' AND doc->'removed_attempts' = '1'" purge --consumer old.v1 --older-than 30d
unset PGOPTIONS

# Another purge of the schema is at work: its lock is held by a session that waits for its input to end.
exec {hold}> >(psql -XAtq >/dev/null)
echo "SELECT pg_advisory_lock(hashtextextended('$schema', 1768186222::bigint));" >&"$hold"
until [ "$(sql "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted")" -gt 0 ]; do :; done
expect 4 'another purge' purge --consumer mail.v1 --older-than 1s
exec {hold}>&-

if [ -w /dev/full ]; then
  status=0
  "$idemctl" --schema "$schema" check >/dev/full 2>/dev/null || status=$?
  [ "$status" -eq 4 ] || wrong "check: ended with $status where its answer cannot be written"
fi

if [ "$failures" -gt 0 ]; then
  echo "$failures of idemctl's answers are wrong"
  exit 1
fi
echo "idemctl answers as it should"
