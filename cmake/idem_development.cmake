# SPDX-License-Identifier: MIT
# What our own tests and examples are built with; nothing here reaches a user of the library.

find_program(IDEM_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND IDEM_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${IDEM_CCACHE}")
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)

add_library(idem_warnings INTERFACE)
target_compile_options(
  idem_warnings
  INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror
            -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align -Wcast-qual -Wformat=2
            -Wextra-semi -Wundef -Wimplicit-fallthrough
            $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond>)
