# SPDX-License-Identifier: MIT
# Header-only: everything lands in include/ and share/, and the whole prefix can be moved.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/idem")

# One export a component: a component's dependency is looked for only when that component is.
set(idem_components core)
foreach(component postgres json)
  if(TARGET idem_${component})
    list(APPEND idem_components ${component})
  endif()
endforeach()
foreach(component IN LISTS idem_components)
  install(TARGETS idem_${component} EXPORT idem_${component} FILE_SET HEADERS)
  install(EXPORT idem_${component} NAMESPACE idem:: DESTINATION "${package_dir}" FILE idem-${component}-targets.cmake)
endforeach()

# An absolute folder is no part of the prefix; CMake's own export takes it for one.
set(idem_absolute_include_dir)
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(idem_absolute_include_dir "${CMAKE_INSTALL_INCLUDEDIR}")
endif()

configure_file(cmake/idem-config.cmake.in idem-config.cmake @ONLY)
write_basic_package_version_file(idem-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/idem-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/idem-config-version.cmake"
              cmake/Findlibpqxx.cmake
        DESTINATION "${package_dir}")

# pkg-config files find the headers relative to themselves.
set(pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(absolute_prefix "/idem-prefix")
cmake_path(ABSOLUTE_PATH pkgconfig_dir BASE_DIRECTORY "${absolute_prefix}" OUTPUT_VARIABLE absolute_pkgconfig_dir)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY "${absolute_prefix}" OUTPUT_VARIABLE absolute_include_dir)
cmake_path(RELATIVE_PATH absolute_include_dir BASE_DIRECTORY "${absolute_pkgconfig_dir}" OUTPUT_VARIABLE idem_pc_include_dir)
set(idem_pc_include_dir "\${pcfiledir}/${idem_pc_include_dir}")
if(idem_absolute_include_dir)
  string(REPLACE " " "\\ " idem_pc_include_dir "${idem_absolute_include_dir}")
endif()
foreach(file idem idem-postgres)
  if(file STREQUAL "idem-postgres" AND NOT TARGET idem_postgres)
    continue()
  endif()
  configure_file(cmake/${file}.pc.in ${file}.pc @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${file}.pc" DESTINATION "${pkgconfig_dir}")
endforeach()
