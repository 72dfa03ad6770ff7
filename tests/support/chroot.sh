# SPDX-License-Identifier: MIT
# To be sourced by the scripts that run the suite on another Debian. They need root, mmdebstrap and unshare.

chroot_requirements() {
  local program
  for program in mmdebstrap unshare chroot; do
    command -v "$program" >/dev/null || { echo "$program is missing (Debian: apt-get install mmdebstrap util-linux)" >&2; return 1; }
  done
  [ "$(id -u)" -eq 0 ] || { echo "Run this as root: it makes and enters a chroot." >&2; return 1; }
}

# The host's way to its mirror (proxies, leave to use one whose Release file is past its date) holds inside too.
host_apt_options() { apt-config dump | grep -E '^Acquire::((http|https|ftp)(::|$)|Check-)' || true; }

# make_chroot SUITE FOLDER PACKAGES: PACKAGES with commas.
make_chroot() {
  local options=() line
  while IFS= read -r line; do options+=("--aptopt=$line"); done < <(host_apt_options)
  mkdir -p "$(dirname "$2")"
  rm -rf --one-file-system "$2.part" # of a run that was broken off
  mmdebstrap --quiet --variant=minbase "${options[@]}" --include="$3" "$1" "$2.part"
  host_apt_options >"$2.part/etc/apt/apt.conf.d/99host"
  mv "$2.part" "$2"
}

# in_chroot FOLDER CHECKOUT SCRIPT: runs SCRIPT with the checkout, read-only, at /checkout. The mounts are those of
# a mount namespace of its own, and go with it.
in_chroot() {
  # shellcheck disable=SC2016 # expanded inside
  unshare --mount --propagation private bash -euc '
    mkdir -p "$1/checkout"
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/dev/shm"
    mount --bind "$2" "$1/checkout"
    mount -o remount,bind,ro "$1/checkout"
    cp --remove-destination "$(readlink -f /etc/resolv.conf)" "$1/etc/resolv.conf"
    exec chroot "$1" /usr/bin/env -u TMPDIR HOME=/root LC_ALL=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -euc "$3"
  ' in_chroot "$1" "$2" "$3"
}
