# Each room has one target. A room is a folder, and the name of its target is its path with '_' for
# '/', for example common_base for common/base.
#
#   eg_room([DEPS targets...] [EXCLUDE files...])      in the room's own CMakeLists.txt
#   eg_daemon(NAME evergrad-worker DEPS targets...)    an executable from main.cc beside it
#   eg_tests(ROOM common/base [DEPS targets...] [LABELS labels...])   one executable from every
#       *_test.cc of the calling folder
# A test that cannot run on this machine prints "skipped: WHY" and returns; ctest counts it as
# skipped. Paths reach a test through its environment (tests/support/paths.h), never through a
# definition, so that the compiler cache stays valid.
function(eg_room)
  cmake_parse_arguments(ARG "" "" "DEPS;EXCLUDE" ${ARGN})
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" target ${path})
  file(GLOB sources CONFIGURE_DEPENDS *.cc *.h)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  foreach(name IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/${name}$")
  endforeach()
  set(compiled ${sources})
  list(FILTER compiled INCLUDE REGEX "\\.cc$")
  if(compiled)
    add_library(${target} STATIC ${sources})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_compile_options(${target} PRIVATE ${EVERGRAD_WARNINGS})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS})
    eg_precompile(${target})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

function(eg_daemon)
  cmake_parse_arguments(ARG "" "NAME" "DEPS" ${ARGN})
  add_executable(${ARG_NAME} main.cc)
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${ARG_NAME} PRIVATE ${EVERGRAD_WARNINGS})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  eg_precompile(${ARG_NAME})
endfunction()

function(eg_tests)
  cmake_parse_arguments(ARG "" "ROOM;TIMEOUT" "DEPS;LABELS" ${ARGN})
  string(REPLACE "/" "_" target ${ARG_ROOM})
  file(GLOB sources CONFIGURE_DEPENDS *_test.cc *_fixture.cc *_fixture.h)
  if(NOT sources)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${target}_test ${sources})
  target_include_directories(${target}_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${target}_test PRIVATE ${EVERGRAD_WARNINGS} ${EVERGRAD_TEST_OPTIMIZATION})
  target_precompile_headers(${target}_test REUSE_FROM precompiled_tests)
  if(TARGET ${target})
    target_link_libraries(${target}_test PRIVATE ${target})
  endif()
  target_link_libraries(${target}_test PRIVATE ${ARG_DEPS} Catch2::Catch2WithMain)
  set(listed ${CMAKE_CURRENT_BINARY_DIR}/${target}_cases.cmake)
  add_custom_command(TARGET ${target}_test POST_BUILD BYPRODUCTS ${listed} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DTEST_EXECUTABLE=$<TARGET_FILE:${target}_test> -DROOM=${ARG_ROOM}
      "-DLABELS=${ARG_LABELS}" -DTIMEOUT=${ARG_TIMEOUT}
      -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DBIN_DIR=${CMAKE_BINARY_DIR}/bin -DOUT=${listed}
        -P ${PROJECT_SOURCE_DIR}/cmake/add_tests.cmake)
  # A test program that is not built counts as a failed test.
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
  file(WRITE ${include}
    "if(EXISTS [==[${listed}]==])\n"
    "  include([==[${listed}]==])\n"
    "else()\n"
    "  add_test(${target}_test_NOT_BUILT ${target}_test_NOT_BUILT)\n"
    "endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
