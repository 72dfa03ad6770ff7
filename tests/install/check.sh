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

# What a strict user compiles his own code with, the library's headers being his own as well.
strict="-std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"

# compile PROGRAM ARGUMENT...: builds a program without CMake against the headers of the checkout, and runs it.
compile() {
  local program="$work/$1"
  shift
  # shellcheck disable=SC2046,SC2086 # flags are words
  (cd "$here/consumer" && "$CXX" $strict ${CXXFLAGS:-} "-I$root/include" "$@" $(pkg-config --cflags --libs libpqxx fmt libcrypto) -pthread -o "$program")
  "$program"
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

  fetch_content)
    configure fetch_content "-DFETCHCONTENT_SOURCE_DIR_IDEM=$root" -DCOMPONENTS="core;postgres"
    build_and_run fetch_content core postgres
    ;;

  # Warnings of the parent as errors, in the library's headers too: nothing marks them as a system's here.
  plain_include)
    for component in core postgres; do compile "plain_$component" "use_$component.cpp"; done
    ;;

  strict_parent)
    configure strict_parent "-DIDEM_SOURCE_DIR=$root" -DCOMPONENTS="core;postgres" "-DCMAKE_CXX_FLAGS=${CXXFLAGS:-} ${strict#* }"
    build_and_run strict_parent core postgres
    ;;

  macros) compile macros use_macros.cpp ;;

  # Two units that see the same names with other meanings do not link.
  one_definition) compile one_definition -flto -Wodr use_odr.cpp odr.cpp ;;

  # Nothing can be moved then, but everything is found where it was put.
  absolute_include_dir)
    folder="$work/absolute"
    rm -rf "$folder"
    "$CMAKE" -S "$root" -B "$folder/build" "-DCMAKE_INSTALL_INCLUDEDIR=$folder/headers" -DIDEM_BUILD_TESTS=OFF -DIDEM_BUILD_EXAMPLES=OFF
    "$CMAKE" --install "$folder/build" --prefix "$folder/prefix"
    [ -e "$folder/headers/idem/idem.hpp" ] || fail "the headers are not in CMAKE_INSTALL_INCLUDEDIR"
    configure absolute_user "-DCMAKE_PREFIX_PATH=$folder/prefix" -DCOMPONENTS=core
    build_and_run absolute_user core
    export PKG_CONFIG_PATH="$folder/prefix/share/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
    eval "set -- $(pkg-config --cflags --libs idem)"
    # shellcheck disable=SC2086 # flags are words
    "$CXX" -std=c++20 ${CXXFLAGS:-} "$here/consumer/use_core.cpp" "$@" -o "$work/absolute_pkg_config"
    "$work/absolute_pkg_config"
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
