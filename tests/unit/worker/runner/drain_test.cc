#include "worker/runner/drain.h"
#include "tests/support/manual_executor.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

using std::chrono::milliseconds;

struct Leaving {
  Leaving() {
    drain = std::make_shared<Drain>(
        Drain::Environment{&control, milliseconds(20), milliseconds(500), [this] { ++given_up; }});
    drain->SetSession(true);
  }
  void Begin() {
    CHECK(drain->Begin([this] { ++done; }));
  }
  ManualClock clock;
  runtime::ManualExecutor control{&clock};
  int given_up = 0, done = 0;
  std::shared_ptr<Drain> drain;
};

TEST_CASE("a drain without attempts and missing answers ends once, in the next turn") {
  Leaving leaving;
  leaving.drain->Check(false, false);
  leaving.control.RunReady();
  CHECK(leaving.done == 0);  // no drain was requested
  leaving.Begin();
  CHECK(leaving.drain->begun());
  leaving.drain->Check(false, false);
  CHECK(leaving.done == 0);
  leaving.drain->Check(false, false);
  leaving.control.RunReady();
  CHECK(leaving.done == 1);
  CHECK_FALSE(leaving.drain->Begin([] {}));
  leaving.control.Advance(milliseconds(1000));
  CHECK(leaving.done == 1);
  CHECK(leaving.given_up == 0);
}

TEST_CASE("a drain waits for the attempt without a bound, and for answers a bounded time") {
  Leaving leaving;
  leaving.Begin();
  leaving.drain->Check(true, false);
  leaving.control.Advance(milliseconds(5000));
  CHECK(leaving.done == 0);
  leaving.drain->Check(false, true);
  leaving.control.Advance(milliseconds(19));
  CHECK(leaving.done == 0);
  leaving.drain->Check(false, true);  // a later change does not extend the drain
  leaving.control.Advance(milliseconds(1));
  CHECK(leaving.done == 1);
}

TEST_CASE(
    "without a session a drain gives up the running attempt, unless a new session begins in time") {
  Leaving leaving;
  leaving.Begin();
  leaving.drain->Check(true, true);
  leaving.drain->SetSession(false);
  leaving.control.Advance(milliseconds(499));
  leaving.drain->SetSession(true);
  leaving.control.Advance(milliseconds(1000));
  CHECK(leaving.done == 0);
  leaving.drain->SetSession(false);
  leaving.control.Advance(milliseconds(500));
  CHECK(leaving.given_up == 1);
  CHECK(leaving.done == 1);
}

TEST_CASE("a drain that begins without a session ends by itself") {
  Leaving leaving;
  leaving.drain->SetSession(false);
  leaving.Begin();
  leaving.control.Advance(milliseconds(500));
  CHECK(leaving.given_up == 1);
  CHECK(leaving.done == 1);
}

}  // namespace
}  // namespace evergrad::worker
