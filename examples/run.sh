#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# examples/run.sh [deliveries.jsonl]
#
# Installs what is missing (Debian, as root), builds the example webhook_ledger, and runs it on a private PostgreSQL.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/support/prepare.sh"

install_missing
configure
cmake --build "$build" --target webhook_ledger
exec "$root/tests/support/with_postgres.sh" "$build/examples/webhook_ledger" "$@"
