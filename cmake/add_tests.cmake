# eg_tests runs this script (cmake -P) after a test executable was linked. The script asks the
# executable for its test cases and writes one add_test for each.
#
# Catch2's own script keeps the names in a CMake list. There, a name with a semicolon becomes two
# tests that do not exist, and Catch2 reports them as passed. This script keeps no name in a list,
# and `-w NoTests` makes a test fail if it finds no test case.
execute_process(COMMAND "${TEST_EXECUTABLE}" --list-test-names-only OUTPUT_VARIABLE rest
  RESULT_VARIABLE count)
if(NOT count GREATER 0)  # The exit code is the number of test cases.
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
  # Escapes the characters that have a meaning in Catch2's patterns.
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
