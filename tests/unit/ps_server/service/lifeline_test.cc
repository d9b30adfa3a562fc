#include "ps_server/service/lifeline.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <optional>

#include "common/random/philox.h"
#include "tests/support/skip.h"

namespace evergrad::ps_server {
namespace {

TEST_CASE(
    "a living process, even a stopped one, has not ended; once it is killed, every other process "
    "of its place can prove it") {
  const std::uint64_t uid = random::EntropyFromOs();
  const Lifeline own(uid ^ 1);
  if (own.place().empty()) {
    test::Skip("no abstract sockets here");
    return;
  }
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const Lifeline held(uid);
    const char byte = held.place().empty() ? 'n' : 'y';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  CHECK(byte == 'y');
  CHECK_FALSE(own.HasEnded(uid, own.place()));
  REQUIRE(::kill(child, SIGSTOP) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  CHECK_FALSE(own.HasEnded(uid, own.place()));
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(own.HasEnded(uid, own.place()));
  CHECK(own.HasEnded(uid, own.place()));  // the first query has not taken the name
}

TEST_CASE(
    "nothing is proved about a process in another place, about no process, or about the own "
    "process") {
  const std::uint64_t uid = random::EntropyFromOs();
  const Lifeline own(uid);
  if (own.place().empty()) {
    test::Skip("no abstract sockets here");
    return;
  }
  CHECK_FALSE(own.HasEnded(uid, own.place()));
  CHECK_FALSE(own.HasEnded(uid ^ 1, own.place() + "x"));
  CHECK_FALSE(own.HasEnded(uid ^ 1, ""));
  CHECK_FALSE(own.HasEnded(0, own.place()));
  // Another process has taken the name of this lifeline, so nobody could prove the end of this
  // process. A lifeline without its name must have no place.
  CHECK(Lifeline(uid).place().empty());
}

}  // namespace
}  // namespace evergrad::ps_server
