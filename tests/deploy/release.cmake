# Tests of a release's artefacts. The first test makes the artefacts from the programs of this
# build.
function(eg_release_test name)
  add_test(NAME "deploy: ${name}" COMMAND /usr/bin/python3
    ${CMAKE_CURRENT_SOURCE_DIR}/release_test.py --bin ${CMAKE_BINARY_DIR}/bin
    --artefacts ${CMAKE_BINARY_DIR}/release-artefacts ${ARGN})
  set_tests_properties("deploy: ${name}" PROPERTIES TIMEOUT 900 RUN_SERIAL ON
    SKIP_RETURN_CODE 77)
endfunction()

if(NOT EVERGRAD_SANITIZE)  # a release does not contain the sanitizers' runtimes
  eg_release_test("the release's artefacts are made" Making)
  set_tests_properties("deploy: the release's artefacts are made"
    PROPERTIES FIXTURES_SETUP release-artefacts)
  eg_release_test("what the release's artefacts contain" Contents)
  eg_release_test("the image trains under runc" Image)
  eg_release_test("the package in a bare chroot" Package)
  foreach(name "what the release's artefacts contain" "the image trains under runc"
      "the package in a bare chroot")
    set_tests_properties("deploy: ${name}" PROPERTIES FIXTURES_REQUIRED release-artefacts)
  endforeach()
  eg_release_test("the units of systemd" Units)
endif()
