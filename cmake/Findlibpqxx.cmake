# SPDX-License-Identifier: MIT
#
# Defines libpqxx::pqxx, with libpq beside it: from libpqxx's own CMake package where there is one, else from
# pkg-config. Imported, so its headers are SYSTEM ones: those of 7.10 do not pass every warning.
# Sets libpqxx_FOUND, libpqxx_VERSION and, when it is missing, libpqxx_NOT_FOUND_MESSAGE.

if(NOT TARGET libpqxx::pqxx)
  find_package(libpqxx CONFIG QUIET)
endif()

if(NOT TARGET libpqxx::pqxx)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(libpqxx_pkgconfig QUIET IMPORTED_TARGET libpqxx libpq)
  endif()
  if(TARGET PkgConfig::libpqxx_pkgconfig)
    # /usr/include as -isystem would come too early for <cstdlib>'s include_next.
    get_target_property(libpqxx_include_dirs PkgConfig::libpqxx_pkgconfig INTERFACE_INCLUDE_DIRECTORIES)
    if(libpqxx_include_dirs)
      list(REMOVE_ITEM libpqxx_include_dirs /usr/include)
      set_target_properties(PkgConfig::libpqxx_pkgconfig PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                                    "${libpqxx_include_dirs}")
    endif()
    unset(libpqxx_include_dirs)
    add_library(libpqxx::pqxx INTERFACE IMPORTED)
    target_link_libraries(libpqxx::pqxx INTERFACE PkgConfig::libpqxx_pkgconfig)
    set(libpqxx_VERSION "${libpqxx_pkgconfig_libpqxx_VERSION}")
  endif()
endif()

if(TARGET libpqxx::pqxx)
  set(libpqxx_FOUND TRUE)
else()
  set(libpqxx_FOUND FALSE)
  set(libpqxx_NOT_FOUND_MESSAGE
      "libpqxx was not found: install it with its libpq (Debian and Ubuntu: apt-get install pkg-config libpqxx-dev libpq-dev)")
  if(libpqxx_FIND_REQUIRED)
    message(FATAL_ERROR "${libpqxx_NOT_FOUND_MESSAGE}.")
  endif()
endif()
