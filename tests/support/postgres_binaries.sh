# SPDX-License-Identifier: MIT
# To be sourced.

# Prints the folder of PostgreSQL's server programs: $IDEM_TEST_PGBIN, else the newest installed. Fails if none.
postgres_binaries() {
  local found
  found=${IDEM_TEST_PGBIN:-}
  if [ -z "$found" ]; then
    found=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb | sort -V | while read -r program; do
      if [ -x "$program" ]; then dirname "$program"; fi
    done | tail -n 1)
  fi
  if [ -z "$found" ] && command -v initdb >/dev/null; then
    found=$(dirname "$(readlink -f "$(command -v initdb)")")
  fi
  [ -n "$found" ] && [ -x "$found/initdb" ] && [ -x "$found/pg_ctl" ] && printf '%s\n' "$found"
}
