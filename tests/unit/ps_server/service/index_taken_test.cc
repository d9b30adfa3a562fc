#include "ps_server/service/index_taken.h"

#include <catch2/catch.hpp>

namespace evergrad::ps_server {
namespace {

using Catch::Matchers::Contains;

v1::Rejected Taken(const std::string& host, bool lives) {
  v1::Rejected rejected;
  rejected.set_kind("identity_taken");
  rejected.set_holder_host(host);
  rejected.set_holder_lives(lives);
  rejected.set_free_identity("1");
  return rejected;
}

TEST_CASE(
    "a server with the default index 0 ends at once if a living server on another host has it, and "
    "its message has the command to type") {
  IndexTaken taken("0", true, "box-b.example");
  const IndexTaken::Verdict verdict = taken.Judge(Taken("box-a.example", true));
  CHECK(verdict.ends);
  CHECK_THAT(
      verdict.say,
      Contains("another running server has the index of this server: index=0 host=box-a.example") &&
          Contains("start this server with --index 1"));
}

TEST_CASE(
    "a server with the default index 0 names once the server of its own host that has the index, "
    "and waits") {
  IndexTaken taken("0", true, "box");
  IndexTaken::Verdict verdict = taken.Judge(Taken("box", true));
  CHECK_FALSE(verdict.ends);
  CHECK_THAT(verdict.say, Contains("host=box;") && Contains("--index 1") &&
                              Contains("Until then, this server waits"));
  verdict = taken.Judge(Taken("box", true));
  CHECK_FALSE(verdict.ends);
  CHECK(verdict.say.empty());
}

TEST_CASE("a server waits for its former process, and always if its index was given explicitly") {
  IndexTaken by_default("0", true, "box-b"), meant("0", false, "box-b");
  // The server that holds the index is dead or disconnected. It may be a former process of this
  // server on another host.
  for (const IndexTaken::Verdict& verdict :
       {by_default.Judge(Taken("box-a", false)), meant.Judge(Taken("box-a", true))}) {
    CHECK_FALSE(verdict.ends);
    CHECK(verdict.say.empty());
  }
  v1::Rejected other = Taken("box-a", true);
  other.set_kind("limit");
  CHECK_FALSE(by_default.Judge(other).ends);
}

TEST_CASE("the name of the other host is logged as UTF-8 of a bounded length") {
  IndexTaken taken("0", true, "b");
  const std::string say = taken.Judge(Taken("\xff" + std::string(4000, 'a'), true)).say;
  CHECK(say.find('\xff') == std::string::npos);
  CHECK(say.size() < 500);
}

}  // namespace
}  // namespace evergrad::ps_server
