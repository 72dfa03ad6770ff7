#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# pgbouncer.sh FOLDER PORT SERVERS SERVER_FOLDER SERVER_PORT
#
# Becomes a PgBouncer in transaction pooling mode, its socket and its log in FOLDER, which shares SERVERS connections to
# the server whose socket is in SERVER_FOLDER among any number of clients.
set -euo pipefail
folder=$1

cat >"$folder/pgbouncer.ini" <<INI
[databases]
* = host=$4 port=$5
[pgbouncer]
pool_mode = transaction
default_pool_size = $3
max_client_conn = 500
listen_port = $2
unix_socket_dir = $folder
auth_type = trust
auth_file = $folder/users
logfile = $folder/log
; what a server connection goes through between two clients: nothing, as by default in this mode
server_reset_query =
; a server connection that could not be had is tried again at once
server_login_retry = 0
INI
printf '"%s" ""\n' "${PGUSER:-postgres}" >"$folder/users"
command -v pgbouncer >/dev/null || PATH=$PATH:/usr/sbin

# PgBouncer refuses to run as root.
if [ "$(id -u)" -eq 0 ]; then
  chown -R postgres "$folder"
  exec setpriv --reuid=postgres --regid=postgres --init-groups pgbouncer -q "$folder/pgbouncer.ini"
fi
exec pgbouncer -q "$folder/pgbouncer.ini"
