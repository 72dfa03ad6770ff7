#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# check.sh CASE: plays a user of the library; run by ctest, which sets IDEM_BUILD, CMAKE, CXX, CXXFLAGS.
set -euo pipefail
: "${IDEM_BUILD:?}" "${CMAKE:?}" "${CXX:?}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work="$IDEM_BUILD/package check"
prefix="$work/moved prefix"

fail() {
  echo "$*" >&2
  exit 1
}

# configure FOLDER [CMAKE ARGUMENT...]
configure() {
  local folder="$work/$1"
  shift
  rm -rf "$folder"
  "$CMAKE" -S "$here/consumer" -B "$folder" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
}

build_and_run() {
  local folder="$work/$1" component
  shift
  "$CMAKE" --build "$folder"
  for component in "$@"; do "$folder/use_$component"; done
}

# What configuring is expected to end with, unwrapped to one line.
configure_fails() {
  local output
  if output=$(configure "$@" 2>&1); then fail "configuring $1 succeeded: $output"; fi
  printf '%s' "$output" | tr -s ' \n' ' '
}

case $1 in
  install)
    rm -rf "$work"
    "$CMAKE" --install "$IDEM_BUILD" --prefix "$work/prefix"
    mv "$work/prefix" "$prefix" # nothing installed may know where it was put
    if grep -rF -e "$work" -e "$root" "$prefix"; then fail "an installed file names a folder of this machine"; fi
    ;;

  find_package)
    configure find_package "-DCMAKE_PREFIX_PATH=$prefix" -DCOMPONENTS="core;postgres;json"
    build_and_run find_package core postgres json
    ;;

  add_subdirectory)
    configure add_subdirectory "-DIDEM_SOURCE_DIR=$root" -DCOMPONENTS="core;postgres"
    build_and_run add_subdirectory core postgres
    grep -q -- "-isystem .*include" "$work/add_subdirectory/compile_commands.json" ||
      fail "the library's headers are not SYSTEM in a parent project"
    "$CMAKE" --install "$work/add_subdirectory" --prefix "$work/parent"
    if [ -e "$work/parent" ]; then fail "a parent project's install installs the library"; fi
    ;;

  pkg_config)
    export PKG_CONFIG_PATH="$prefix/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
    for package in idem:core idem-postgres:postgres; do
      flags=$(pkg-config --cflags --libs "${package%:*}")
      # pkg-config escapes for a shell.
      eval "set -- $flags"
      # shellcheck disable=SC2086 # flags are words
      "$CXX" -std=c++20 ${CXXFLAGS:-} "$here/consumer/use_${package#*:}.cpp" "$@" -o "$work/pkg_config_${package#*:}"
      "$work/pkg_config_${package#*:}"
    done
    ;;

  without_libpqxx)
    export PKG_CONFIG_LIBDIR="$work/nowhere"
    unset PKG_CONFIG_PATH
    sentence='idem::postgres: libpqxx was not found: install it'
    found=$(configure_fails no_libpqxx "-DCMAKE_PREFIX_PATH=$prefix" -DCOMPONENTS="core;postgres")
    [[ $found == *"$sentence"* ]] || fail "find_package says: $found"
    found=$(configure_fails no_libpqxx "-DIDEM_SOURCE_DIR=$root" -DCOMPONENTS="core;postgres")
    [[ $found == *"$sentence"* ]] || fail "add_subdirectory says: $found"
    configure core_only "-DCMAKE_PREFIX_PATH=$prefix" -DCOMPONENTS=core
    configure core_only "-DCMAKE_PREFIX_PATH=$prefix" -DUSE=core
    build_and_run core_only core
    ;;

  *) fail "unknown case: $1" ;;
esac
