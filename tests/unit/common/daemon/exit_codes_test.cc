#include "common/daemon/exit_codes.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

namespace evergrad::daemon {
namespace {

TEST_CASE(
    "each exit code is in the table once, by rising code, with a name and sentences of its own") {
  int before = -1;
  std::set<std::string> names, meanings;
  for (const ExitCode& one : ExitCodes()) {
    INFO(one.code);
    CHECK(one.code > before);
    CHECK(one.code < 126);  // a shell uses the codes from 126 on for itself
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

TEST_CASE(
    "a refused worker and a refused server end with the same code, and one that is replaced with "
    "its own") {
  CHECK(ExitCodeOfRefusal("replaced") == kExitReplaced);
  for (const char* kind : {"version", "certificate", "anything new"})
    CHECK(ExitCodeOfRefusal(kind) == kExitRefused);
}

}  // namespace
}  // namespace evergrad::daemon
