#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/run.sh [ctest arguments]
#
# Installs what is missing (Debian, as root), builds, starts a private PostgreSQL, and runs the whole suite on it.
#   ./tests/run.sh -R retry     only the tests whose name contains "retry"
#   IDEM_PRESET=asan ./tests/run.sh
#   IDEM_TARGETS="idem_tests" ./tests/run.sh -R unit/     builds only that
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/support/prepare.sh"

install_missing
configure
# shellcheck disable=SC2086 # targets are words
cmake --build "$build" ${IDEM_TARGETS:+--target $IDEM_TARGETS}
export IDEM_TEST_PGLOG_COPY=$build/postgres.log
exec "$root/tests/support/with_postgres.sh" \
  ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
