#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/chroot.sh SUITE [ctest arguments]
#
# The whole suite on another Debian: trixie (libpqxx 7.10, PostgreSQL 17, g++ 14) or forky (libpqxx 8, PostgreSQL
# 18, CMake 4), in a chroot that is made when absent and kept, with its build folder. The working tree is taken as it is.
# IDEM_CHROOTS: the folder of the chroots (default: idem/chroots in the user's cache folder).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/support/chroot.sh"
suite=${1:?usage: tests/chroot.sh trixie|forky [ctest arguments]}
shift
chroot_requirements

chroots=${IDEM_CHROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/idem/chroots}
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
  ./tests/run.sh $(printf '%q ' "$@")
"
