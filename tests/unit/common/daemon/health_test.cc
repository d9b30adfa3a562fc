// Tests the health of a daemon's process before and after its role listens.
#include <catch2/catch.hpp>

#include "common/daemon/daemon.h"

namespace evergrad::daemon {
namespace {

TEST_CASE(
    "a daemon is live from its start, and ready once it listens if no role adds a condition") {
  Daemon daemon(Role::kCoordinator, "test");
  const char* const arguments[] = {"evergrad-coordinator", "--log-file", "/dev/null"};
  REQUIRE(daemon.Start(3, arguments) == std::nullopt);
  CHECK(daemon.health().Ask(health::Question::kLive).text == "ok\n");
  CHECK(daemon.health().Ask(health::Question::kReady).text ==
        "not ready: listening: this daemon does not listen yet\n");
  REQUIRE(daemon.ReportListening("127.0.0.1:1").ok());
  CHECK(daemon.health().Ask(health::Question::kReady).text == "ok\n");
}

}  // namespace
}  // namespace evergrad::daemon
