#include "common/daemon/exit_codes.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

namespace evergrad::daemon {
namespace {

TEST_CASE(
    "the table has each exit code once, in rising order, with a unique name and full sentences") {
  int before = -1;
  std::set<std::string> names, meanings;
  for (const ExitCode& one : ExitCodes()) {
    INFO(one.code);
    CHECK(one.code > before);
    CHECK(one.code < 126);  // a shell uses the codes from 126 for itself
    before = one.code;
    CHECK(names.insert(one.name).second);
    CHECK(meanings.insert(one.meaning).second);
    for (const char* text : {one.meaning, one.restart}) CHECK(std::string(text).back() == '.');
    CHECK(std::string(one.of).find("evergrad-") ==
          (one.code <= kExitUsage ? std::string::npos : 0));
    CHECK(FindExitCode(one.code) == &one);
  }
  for (const int code : {kExitOk, kExitFailed, kExitUsage, kExitReplaced, kExitRefused, kExitDevice,
                         kExitJournal, kExitIdentityTaken})
    CHECK(FindExitCode(code) != nullptr);
  CHECK(FindExitCode(3) == nullptr);
}

TEST_CASE("refused workers and servers exit with one code, and replaced ones with another") {
  CHECK(ExitCodeOfRefusal("replaced") == kExitReplaced);
  for (const char* kind : {"version", "certificate", "anything new"})
    CHECK(ExitCodeOfRefusal(kind) == kExitRefused);
}

}  // namespace
}  // namespace evergrad::daemon
