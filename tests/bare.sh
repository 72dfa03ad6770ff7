#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/bare.sh
#
# What someone new meets: a bare Debian 12 with git and nothing else, the last commit cloned into a folder with a
# space in its name, then ./examples/run.sh and ./tests/run.sh. Needs root, mmdebstrap and a Debian mirror.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/support/chroot.sh"
chroot_requirements

folder=$(mktemp -d /var/tmp/idem-bare.XXXXXX)
trap 'rm -rf --one-file-system "$folder"' EXIT
make_chroot bookworm "$folder/root" git,ca-certificates
in_chroot "$folder/root" "$root" '
  mkdir -p "/root/new here"
  cd "/root/new here"
  git -c safe.directory="*" clone --quiet /checkout idem
  cd idem
  ./examples/run.sh
  ./tests/run.sh
  test -z "$(git status --porcelain)" || { echo "the run left files that .gitignore does not name:"; git status --porcelain; exit 1; }
'
