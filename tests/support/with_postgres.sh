#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# with_postgres.sh COMMAND [ARG...]
#
# Runs COMMAND with a private PostgreSQL server that lives as long as it: a fresh cluster in a temporary folder,
# reachable through a unix socket only. COMMAND finds it in PGHOST, PGUSER and PGDATABASE; tests that stop and
# start it use postgres_server.sh and IDEM_TEST_PGDATA, IDEM_TEST_PGBIN, IDEM_TEST_PGLOG.
#
# IDEM_TEST_PGBIN       the folder of initdb and pg_ctl (default: the newest installed)
# IDEM_TEST_PGLOG_COPY  where a copy of the server's log is left
set -euo pipefail
support=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$support/postgres_binaries.sh"

IDEM_TEST_PGBIN=$(postgres_binaries) || { echo "PostgreSQL's server was not found: install it, or set IDEM_TEST_PGBIN to the folder of initdb" >&2; exit 1; }

# What the caller's shell says about some other server must not reach this one.
for name in $(compgen -e PG || true); do unset "$name"; done

# Under /tmp whatever TMPDIR says: a socket's path must stay below 108 bytes, and the server's user must reach it.
folder=$(mktemp -d /tmp/idem-postgres.XXXXXX)
export IDEM_TEST_PGBIN IDEM_TEST_PGDATA=$folder/data IDEM_TEST_PGLOG=$folder/log
export IDEM_TEST_PGSERVER=$support/postgres_server.sh
export PGHOST=$folder PGUSER=postgres PGDATABASE=idem_test

command_pid=
clean_up() {
  status=$?
  trap '' INT TERM HUP
  if [ -n "$command_pid" ]; then
    kill -TERM -- "-$command_pid" 2>/dev/null || true
    wait "$command_pid" 2>/dev/null || true
  fi
  "$IDEM_TEST_PGSERVER" stop || "$IDEM_TEST_PGSERVER" crash || true
  if [ -n "${IDEM_TEST_PGLOG_COPY:-}" ] && [ -e "$IDEM_TEST_PGLOG" ]; then
    cp "$IDEM_TEST_PGLOG" "$IDEM_TEST_PGLOG_COPY" || true
  fi
  rm -rf "$folder"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

"$IDEM_TEST_PGSERVER" create
"$IDEM_TEST_PGSERVER" start

# In a process group of its own and waited for, so that a signal to this script ends the whole of it at once.
set -m
"$@" &
command_pid=$!
set +m
status=0
wait "$command_pid" || status=$?
command_pid=
exit "$status"
