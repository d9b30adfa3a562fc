// Tests which messages of a job a failpoint holds back, without a Job object.
#include "coordinator/jobs/failpoint_hold.h"

#include <catch2/catch.hpp>

#include "fake_host.h"

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;

TEST_CASE("a failpoint holds back for its delay, and counts no hit meanwhile") {
  FakeHost host;
  FailpointHold hold("coordinator.evaluate");
  CHECK_FALSE(hold.Holds(&host));
  REQUIRE(host.points.Arm("coordinator.evaluate=1*delay(80),2*delay(80)", 1).ok());
  for (int hit = 0; hit < 2; ++hit) {
    CHECK(hold.Holds(&host));
    host.clock.Advance(milliseconds(79));
    CHECK(hold.Holds(&host));
    host.clock.Advance(milliseconds(1));
  }
  CHECK_FALSE(hold.Holds(&host));
}

}  // namespace
}  // namespace evergrad::coordinator
