#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# postgres_server.sh create|start|stop|crash|restart
#
# Acts on the server of IDEM_TEST_PGDATA, IDEM_TEST_PGBIN and IDEM_TEST_PGLOG, and on no other; see with_postgres.sh.
#   create   an empty cluster, its socket in $PGHOST
#   start    waits until the server answers; makes sure that $PGDATABASE is there
#   stop     breaks open connections off; no error when nothing runs
#   crash    stops at once, without a checkpoint: the next start recovers from the log
#   restart  stop and start
set -euo pipefail
: "${IDEM_TEST_PGDATA:?is set by with_postgres.sh}" "${IDEM_TEST_PGBIN:?}" "${IDEM_TEST_PGLOG:?}"

# PostgreSQL refuses to run as root.
as_server() {
  if [ "$(id -u)" -eq 0 ]; then
    (cd / && setpriv --reuid=postgres --regid=postgres --init-groups -- "$@")
  else
    "$@"
  fi
}

create() {
  if [ "$(id -u)" -eq 0 ]; then chown postgres "$PGHOST"; fi
  # Only the making of the empty cluster skips fsync; the server itself keeps it on.
  as_server "$IDEM_TEST_PGBIN/initdb" --pgdata="$IDEM_TEST_PGDATA" --username=postgres --auth=trust \
    --encoding=UTF8 --locale=C.UTF-8 --no-sync >/dev/null
  as_server tee -a "$IDEM_TEST_PGDATA/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$PGHOST'
max_connections = 200
log_line_prefix = '%m [%p] %q%a '
CONF
}

running() { as_server "$IDEM_TEST_PGBIN/pg_ctl" status --pgdata="$IDEM_TEST_PGDATA" >/dev/null 2>&1; }

start() {
  if ! as_server "$IDEM_TEST_PGBIN/pg_ctl" start --pgdata="$IDEM_TEST_PGDATA" --log="$IDEM_TEST_PGLOG" --wait --timeout=60 >/dev/null; then
    echo "PostgreSQL did not start; its log ends:" >&2
    tail -n 20 "$IDEM_TEST_PGLOG" >&2
    return 1
  fi
  local database="$PGDATABASE"
  if [ "$("$IDEM_TEST_PGBIN/psql" -qAtX -d postgres -c "SELECT count(*) FROM pg_database WHERE datname = '$database'")" = 0 ]; then
    "$IDEM_TEST_PGBIN/createdb" "$database"
  fi
}

stop() {
  if running; then
    as_server "$IDEM_TEST_PGBIN/pg_ctl" stop --pgdata="$IDEM_TEST_PGDATA" --mode="$1" --wait --timeout=60 >/dev/null
  fi
}

case ${1:-} in
  create) create ;;
  start) start ;;
  stop) stop fast ;;
  crash) stop immediate ;;
  restart) stop fast; start ;;
  *) echo "usage: ${0##*/} create|start|stop|crash|restart" >&2; exit 2 ;;
esac
