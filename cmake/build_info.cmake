# Run at each build: writes OUTPUT with the version and the commit, and leaves it untouched when
# they are the same.
execute_process(COMMAND git --no-optional-locks -C ${SOURCE_DIR} describe --always --dirty
  --abbrev=12 --exclude=* OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
  set(commit unknown)
endif()
string(CONCAT text
  "constexpr char kGeneratedVersion[] = \"${VERSION}\";\n"
  "constexpr char kGeneratedCommit[] = \"${commit}\";\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL "${old}")
  file(WRITE ${OUTPUT} "${text}")
endif()
