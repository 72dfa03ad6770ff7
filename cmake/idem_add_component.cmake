# SPDX-License-Identifier: MIT

# idem_add_component(<name> HEADERS <file>... LINK <target>...)
# Defines the header-only target idem_<name> with its alias idem::<name>.
function(idem_add_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LINK")
  set(target idem_${name})
  add_library(${target} INTERFACE)
  add_library(idem::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name}
                                             VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_link_libraries(${target} INTERFACE ${arg_LINK})
  target_sources(${target} INTERFACE FILE_SET HEADERS
                                     BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
                                     FILES ${arg_HEADERS})
  if(NOT PROJECT_IS_TOP_LEVEL)
    # A parent's warnings are about the parent's code. (The SYSTEM target property needs CMake 3.25.)
    target_include_directories(${target} SYSTEM INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  endif()
endfunction()
