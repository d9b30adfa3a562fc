#include "common/fault/failpoints.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace evergrad::fault {
namespace {

std::string Hits(Failpoints& failpoints, const char* name, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) {
    switch (failpoints.At(name).action) {
      case Action::kNone: out += '.'; break;
      case Action::kOn: out += 'o'; break;
      case Action::kError: out += 'e'; break;
      case Action::kUserError: out += 'u'; break;
      case Action::kDrop: out += 'd'; break;
      case Action::kDelay: out += 'w'; break;
    }
  }
  return out;
}

TEST_CASE("the actions that a specification causes at seven hits") {
  struct Case {
    const char* spec;
    const char* want;
  };
  const Case cases[] = {
      {"worker.step=error", "eeeeeee"},
      {"worker.step=3*error", "..e...."},
      {"worker.step=3+drop", "..ddddd"},
      {"worker.step=2*error,4*user_error", ".e.u..."},
      {"worker.step=2*error,drop",
       "deddddd"},  // The order matters: only the first entry that fires acts.
      {" worker.step = 1*error , 3*delay(20) ", "e.w...."},
      {"worker.step=100%drop", "ddddddd"},
      {"worker.step=0%drop", "......."},
      {"", "......."},
      {"session.cut=on", "......."},
      {"session.cut=on;worker.step=7*drop;", "......d"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.spec);
    Failpoints failpoints;
    REQUIRE(failpoints.Arm(c.spec, 1).ok());
    CHECK(Hits(failpoints, "worker.step", 7) == c.want);
  }
}

TEST_CASE("without an armed failpoint nothing happens, whatever name is hit") {
  Failpoints failpoints;
  CHECK_FALSE(failpoints.AnyArmed());
  CHECK_FALSE(failpoints.At("worker.step"));
  CHECK_FALSE(failpoints.At("unknown name"));
  CHECK(failpoints.ErrorAt("worker.step").ok());
}

TEST_CASE("a percentage is drawn from the seed and the number of the hit") {
  const auto draw = [](std::uint64_t seed) {
    Failpoints failpoints;
    REQUIRE(failpoints.Arm("push.duplicate=30%on", seed).ok());
    return Hits(failpoints, "push.duplicate", 1000);
  };
  const std::string a = draw(1);
  CHECK(a == draw(1));
  CHECK(a != draw(2));
  const auto fired = std::count(a.begin(), a.end(), 'o');
  CHECK(fired > 220);
  CHECK(fired < 380);
}

TEST_CASE("a delay has a duration in milliseconds, and an error has a name and a blame") {
  Failpoints failpoints;
  REQUIRE(
      failpoints
          .Arm("server.before_apply=delay(250);worker.step=user_error;worker.open_data=error", 1)
          .ok());
  CHECK(failpoints.At("server.before_apply").delay_ms == 250);
  CHECK(failpoints.ErrorAt("server.before_apply").ok());
  const absl::Status user = failpoints.ErrorAt("worker.step");
  CHECK(BlameOf(user) == Blame::kUser);
  CHECK_THAT(std::string(user.message()), Catch::Contains("worker.step"));
  const absl::Status machine = failpoints.ErrorAt("worker.open_data");
  CHECK(machine.code() == absl::StatusCode::kInternal);
  CHECK(BlameOf(machine) == Blame::kMachine);
}

TEST_CASE(
    "a failpoint is armed while it has an action left, and the query does not count as a hit") {
  Failpoints failpoints;
  REQUIRE(failpoints.Arm("worker.step=2*error;push.duplicate=on", 1).ok());
  for (int i = 0; i < 5; ++i) CHECK(failpoints.IsArmed("worker.step"));
  CHECK(Hits(failpoints, "worker.step", 2) == ".e");
  CHECK_FALSE(failpoints.IsArmed("worker.step"));
  CHECK(failpoints.IsArmed("push.duplicate"));
  CHECK_FALSE(failpoints.IsArmed("session.cut"));
}

TEST_CASE("a malformed specification is refused with its entry and arms nothing") {
  struct Case {
    const char* spec;
    const char* words;
  };
  const Case cases[] = {
      {"worker.stp=error", "did you mean `worker.step`?"},
      {"worker.befor_push=kill", "did you mean `worker.before_push`?"},
      {"elsewhere=kill", "bad failpoint: unknown name: entry=elsewhere=kill"},
      {"worker.step", "expected name=action"},
      {"worker.step=", "unknown action"},
      {"worker.step=explode", "unknown action"},
      {"worker.step=0*error", "integer of at least 1"},
      {"worker.step=1.5*error", "integer of at least 1"},
      {"worker.step=3error", "must be followed by *, + or %"},
      {"worker.step=101%error", "between 0 and 100"},
      {"worker.step=1.2.3%error", "between 0 and 100"},
      {"worker.step=delay", "unknown action"},
      {"worker.step=delay()", "delay(MS)"},
      {"worker.step=delay(x)", "delay(MS)"},
      {"worker.step=delay(-1)", "delay(MS)"},
      {"worker.step=delay(9999999)", "delay(MS)"},
      {"worker.step=error,", "unknown action"},
      {"worker.step=error;worker.step=drop", "duplicate name"},
      {"worker.step=kill(1)", "unknown action"},
      {"session.cut=on;worker.step=99999999999999999999*drop", "integer of at least 1"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.spec);
    Failpoints failpoints;
    const absl::Status status = failpoints.Arm(c.spec, 1);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains(c.words) && Catch::Contains("entry="));
    CHECK_FALSE(failpoints.AnyArmed());
  }
}

TEST_CASE(
    "an action that the site does not perform is refused, and the error lists the performed "
    "actions") {
  struct Case {
    const char* spec;
    const char* words;
  };
  const Case cases[] = {
      {"fs.sync=drop", "`fs.sync` does not perform `drop`, only kill stop error"},
      {"journal.term=error", "`journal.term` does not perform `error`, only kill stop:"},
      {"push.duplicate=2*delay(5)", "only kill stop on"},
      {"worker.step=on", "only kill stop error user_error drop delay"},
      {"session.cut=on,user_error", "does not perform `user_error`"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.spec);
    Failpoints failpoints;
    CHECK_THAT(std::string(failpoints.Arm(c.spec, 1).message()), Catch::Contains(c.words));
    CHECK_FALSE(failpoints.AnyArmed());
  }
  for (const KnownFailpoint& known : Failpoints::Known()) {
    for (const char* action : {"kill", "stop"}) {
      Failpoints failpoints;
      CHECK(failpoints.Arm(std::string(known.name) + "=" + action, 1).ok());
    }
  }
}

TEST_CASE("every known failpoint is listed once with an explanation and valid actions") {
  std::set<absl::string_view> names;
  for (const KnownFailpoint& known : Failpoints::Known()) {
    CAPTURE(std::string(known.name));
    CHECK(names.insert(known.name).second);
    CHECK(known.explanation.size() > 10);
    for (const absl::string_view action : absl::StrSplit(known.actions, ' ', absl::SkipEmpty())) {
      Failpoints failpoints;
      const std::string spec =
          absl::StrCat(known.name, "=", action, action == "delay" ? "(1)" : "");
      CHECK(failpoints.Arm(spec, 1).ok());
    }
  }
  CHECK(names.size() == 37);
}

TEST_CASE("kill ends the process with SIGKILL, and stop stops it until SIGCONT") {
  Failpoints failpoints;
  REQUIRE(failpoints.Arm("worker.step=1*stop,2*kill", 1).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    failpoints.At("worker.step");
    failpoints.At("worker.step");
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  REQUIRE(::kill(child, SIGCONT) == 0);
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace evergrad::fault
