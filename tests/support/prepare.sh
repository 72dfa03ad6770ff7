# SPDX-License-Identifier: MIT
# To be sourced with $root, the checkout. What tests/run.sh, examples/run.sh and .ci/run do before they build.

. "$root/tests/support/postgres_binaries.sh"

# One line for each thing needed: Debian's package, then a command that succeeds when it is there.
requirements() {
  cat <<'LIST'
g++              command -v c++ || [ -n "${CXX:-}" ]
cmake            command -v cmake
ninja-build      command -v ninja
pkg-config       command -v pkg-config
libfmt-dev       pkg-config --exists fmt
libssl-dev       pkg-config --exists libcrypto
libpq-dev        pkg-config --exists libpq
libpqxx-dev      pkg-config --exists libpqxx
nlohmann-json3-dev pkg-config --exists nlohmann_json
catch2           pkg-config --exists catch2 || pkg-config --exists catch2-with-main
postgresql       postgres_binaries
pgbouncer        command -v pgbouncer || [ -x /usr/sbin/pgbouncer ]
prometheus       command -v promtool
LIST
}

missing_packages() {
  local package check
  requirements | while read -r package check; do
    (eval "$check") >/dev/null 2>&1 || printf '%s\n' "$package"
  done
}

# install_packages PACKAGE...: with apt-get where that is possible; else says what is missing, and fails.
install_packages() {
  if ! command -v apt-get >/dev/null; then
    echo "Missing, by the names of Debian's packages: $*. Install them, then run this again." >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    echo "Missing: run as root \`apt-get install $*\`, then run this again." >&2
    return 1
  fi
  # A server that the package starts by itself would be left running.
  local policy=/usr/sbin/policy-rc.d ours=
  if [ ! -e "$policy" ]; then
    ours=yes
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  local status=0
  {
    apt-get update &&
      DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"
  } </dev/null || status=$?
  if [ -n "$ours" ]; then rm -f "$policy"; fi
  return "$status"
}

install_missing() {
  local missing
  missing=$(missing_packages)
  if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # one word a package
    install_packages $missing
  fi
}

# configure: configures $IDEM_PRESET (default: default) and leaves its build folder in $build.
configure() {
  local preset=${IDEM_PRESET:-default}
  build=$root/build/$preset
  mkdir -p "$build"
  if ! (cd "$root" && cmake --preset "$preset") >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    return 1
  fi
}
