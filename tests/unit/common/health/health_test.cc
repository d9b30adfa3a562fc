#include "common/health/health.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/manual_executor.h"

namespace evergrad::health {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a process is ready when every condition is met, and names those that are not") {
  Readiness readiness;
  CHECK(readiness.Missing().empty());
  const Condition session = readiness.Add("session", "no session yet");
  const Condition fit = readiness.Add("fit", "the device is not open");
  CHECK(readiness.Missing() ==
        std::vector<Unmet>{{"session", "no session yet"}, {"fit", "the device is not open"}});
  fit.Meet();
  fit.Meet();
  CHECK(readiness.Missing() == std::vector<Unmet>{{"session", "no session yet"}});
  session.Meet();
  CHECK(readiness.Missing().empty());
  session.Fail("the coordinator ended the session");
  session.Fail("connection refused");
  CHECK(readiness.Missing() == std::vector<Unmet>{{"session", "connection refused"}});
}

TEST_CASE("a condition that is added again is the same condition with the new reason") {
  Readiness readiness;
  const Condition first = readiness.Add("journal", "not open");
  first.Meet();
  const Condition second = readiness.Add("journal", "reading the jobs");
  CHECK(readiness.Missing() == std::vector<Unmet>{{"journal", "reading the jobs"}});
  first.Meet();
  CHECK(readiness.Missing().empty());
  second.Fail("the disk is full");
  CHECK(readiness.Missing() == std::vector<Unmet>{{"journal", "the disk is full"}});
}

TEST_CASE("a reason is one line of bounded length, whatever a peer sends") {
  Readiness readiness;
  const Condition session =
      readiness.Add("session", "refused:\n\x01\x7f\xff" + std::string(2000, 'x'));
  const std::string reason = readiness.Missing().at(0).reason;
  CHECK(reason.substr(0, 14) == "refused:   \xef\xbf\xbd");
  CHECK(reason.size() <= 500);
  CHECK(reason.substr(reason.size() - 3) == "...");
}

TEST_CASE("a condition outlives its process's readiness, and one of no process does nothing") {
  Condition kept;
  kept.Meet();
  kept.Fail("nobody asks");
  {
    Readiness readiness;
    kept = readiness.Add("session", "");
  }
  kept.Meet();
  kept.Fail("nobody asks");
}

TEST_CASE("the service names of the gRPC health protocol ask for liveness and readiness") {
  CHECK(QuestionOf("") == Question::kLive);
  CHECK(QuestionOf("live") == Question::kLive);
  CHECK(QuestionOf("ready") == Question::kReady);
  for (const char* other : {"Ready", "readyz", "evergrad.v1.Data", " "})
    CHECK(QuestionOf(other) == std::nullopt);
}

TEST_CASE("an answer is ok, or one line for each reason; readiness does not change liveness") {
  ManualClock clock;
  Health health(&clock);
  CHECK(health.Ask(Question::kLive).ok);
  CHECK(health.Ask(Question::kReady).text == "ok\n");
  health.readiness().Add("journal", "not open");
  health.readiness().Add("window", "tasks register again");
  const Health::Answer ready = health.Ask(Question::kReady);
  CHECK_FALSE(ready.ok);
  CHECK(ready.text == "not ready: journal: not open\nnot ready: window: tasks register again\n");
  CHECK(health.Ask(Question::kLive).text == "ok\n");

  runtime::ManualExecutor control(&clock);
  health.liveness().Watch("control", &control);
  for (int i = 0; i < 30; ++i) {
    clock.Advance(1s);
    (void)health.Ask(Question::kLive);
  }
  const Health::Answer live = health.Ask(Question::kLive);
  CHECK_FALSE(live.ok);
  CHECK(live.text == "not live: control: this thread has run no task for 30 s\n");
}

}  // namespace
}  // namespace evergrad::health
