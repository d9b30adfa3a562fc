# Precompiled headers. Nine tenths of the time of an object go into reading headers of the standard
# library, Abseil, Protobuf and Catch2, so these are read once for all targets with equal flags:
#
#   precompiled_base      for rooms without messages
#   precompiled_messages  for rooms whose sources include the generated messages
#   precompiled_tests     for eg_tests
#
# Every source still includes what it uses: the preset `thread-safety`, which `./evergrad ci`
# builds, sets CMAKE_DISABLE_PRECOMPILE_HEADERS, and so finds a missing #include. A header of this
# project is never precompiled, because a change of it would compile everything again.
set(EVERGRAD_BASE_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <deque>
  <filesystem> <fstream> <functional> <map> <memory> <optional> <random> <set> <span> <sstream>
  <string> <thread> <utility> <variant> <vector> <absl/container/flat_hash_map.h>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/match.h>
  <absl/strings/numbers.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
  <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/strings/string_view.h>)
set(EVERGRAD_MESSAGE_HEADERS <evergrad/v1/api.pb.h> <evergrad/v1/data.pb.h>
  <evergrad/v1/journal.pb.h> <evergrad/v1/session.pb.h> <evergrad/v1/snapshot.pb.h>
  <nlohmann/json.hpp>)

# eg_precompiled(NAME HEADERS headers... [DEPS targets...] [OPTIONS options...])
function(eg_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS;OPTIONS" ${ARGN})
  set(source ${CMAKE_BINARY_DIR}/${name}.cc)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// Only the headers count.\n")
  endif()
  add_library(${name} OBJECT ${source})
  target_compile_options(${name} PRIVATE ${EVERGRAD_WARNINGS} ${ARG_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
eg_precompiled(precompiled_base HEADERS ${EVERGRAD_BASE_HEADERS} DEPS absl::statusor)
eg_precompiled(precompiled_messages HEADERS ${EVERGRAD_BASE_HEADERS} ${EVERGRAD_MESSAGE_HEADERS}
  DEPS protos absl::statusor)
if(EVERGRAD_BUILD_TESTS)
  eg_precompiled(precompiled_tests HEADERS <catch2/catch.hpp> ${EVERGRAD_BASE_HEADERS}
    ${EVERGRAD_MESSAGE_HEADERS} DEPS protos absl::statusor Catch2::Catch2
    OPTIONS ${EVERGRAD_TEST_OPTIMIZATION})
endif()

# Gives a target the headers that fit its sources. Its compile options must be those of eg_room.
function(eg_precompile target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(chosen precompiled_base)
  foreach(source IN LISTS sources)
    if(NOT IS_ABSOLUTE "${source}")
      set(source ${folder}/${source})
    endif()
    file(STRINGS ${source} found REGEX "^#include \"evergrad/v1/.*\\.pb\\.h\"" LIMIT_COUNT 1)
    if(found)
      set(chosen precompiled_messages)
      break()
    endif()
  endforeach()
  target_precompile_headers(${target} REUSE_FROM ${chosen})
endfunction()
