# Runs at each build. Writes the version and the commit to OUTPUT, and leaves the file untouched if
# they have not changed.
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
