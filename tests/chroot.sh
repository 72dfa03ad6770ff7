#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/chroot.sh SUITE [ctest arguments]
#
# The whole suite on another Debian: trixie (libpqxx 7.10, PostgreSQL 17, g++ 14) or forky (libpqxx 8, PostgreSQL
# 18, CMake 4), in a chroot that is made when absent and kept, with its build folder. The working tree is taken as it is.
# IDEM_PRESET and IDEM_TARGETS as for tests/run.sh.
# IDEM_CHROOTS: the folder of the chroots (default: idem/chroots in the user's cache folder).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/support/chroot.sh"
suite=${1:?usage: tests/chroot.sh trixie|forky [ctest arguments]}
shift
chroot_requirements

chroots=${IDEM_CHROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/idem/chroots}
mkdir -p "$chroots"
exec 9>"$chroots/$suite.lock" # one run at a time in each
flock 9
if [ ! -e "$chroots/$suite/usr" ]; then
  packages=$(. "$root/tests/support/prepare.sh" && requirements | awk '{print $1}' | paste -sd,)
  make_chroot "$suite" "$chroots/$suite" "ca-certificates,ccache,$packages"
fi
# Sources are taken over, the build folder stays: a second run compiles what has changed.
in_chroot "$chroots/$suite" "$root" "
  mkdir -p /root/idem
  cd /root/idem
  find . -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
  tar -C /checkout --exclude=./build --exclude=./.git -cf - . | tar -xf -
  root=\$PWD
  . tests/support/prepare.sh
  install_missing
  if [ '${IDEM_PRESET:-}' = clang ] && ! command -v clang++ >/dev/null; then install_packages clang; fi
  tests/support/versions.sh
  ./tests/run.sh $(printf '%q ' "$@")
"
