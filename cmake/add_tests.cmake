# Run after a test executable was linked (cmake -P, by eg_tests): asks it for its test cases and
# writes one add_test for each.
#
# Catch2's own script keeps the names in a CMake list: a name with a semicolon becomes two tests,
# neither of which exists, and Catch2 calls that a success. Here no name is ever in a list, and `-w
# NoTests` makes a test that finds nothing fail.
execute_process(COMMAND "${TEST_EXECUTABLE}" --list-test-names-only OUTPUT_VARIABLE rest
  RESULT_VARIABLE count)
if(NOT count GREATER 0)  # The exit code is their number.
  message(FATAL_ERROR "no test cases in ${TEST_EXECUTABLE}: ${count}")
endif()
set(script "")
set(found 0)
while(NOT rest STREQUAL "")
  string(FIND "${rest}" "\n" end)
  if(end LESS 0)
    string(LENGTH "${rest}" end)
    string(APPEND rest "\n")
  endif()
  string(SUBSTRING "${rest}" 0 ${end} line)
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${rest}" ${end} -1 rest)
  if(line STREQUAL "")
    continue()
  endif()
  # What Catch2 reads as a pattern.
  set(pattern "${line}")
  foreach(character "\\" "," "[")
    string(REPLACE "${character}" "\\${character}" pattern "${pattern}")
  endforeach()
  string(APPEND script
    "add_test([==[${ROOM}: ${line}]==] [==[${TEST_EXECUTABLE}]==] [==[${pattern}]==] -w NoTests)\n"
    "set_tests_properties([==[${ROOM}: ${line}]==] PROPERTIES "
    "ENVIRONMENT [==[EVERGRAD_SOURCE_DIR=${SOURCE_DIR};EVERGRAD_BIN_DIR=${BIN_DIR}]==]\n"
    "  LABELS [==[${LABELS}]==] TIMEOUT ${TIMEOUT} SKIP_RETURN_CODE 77 "
    "SKIP_REGULAR_EXPRESSION [==[(^|\n)skipped: ]==])\n")
  math(EXPR found "${found} + 1")
endwhile()
if(count LESS 255 AND NOT found EQUAL count)
  message(FATAL_ERROR "${TEST_EXECUTABLE} has ${count} test cases and named ${found}")
endif()
file(WRITE "${OUT}" "${script}")
