#include "common/time/clock.h"
#include "tests/support/manual_executor.h"

#include <catch2/catch.hpp>

namespace evergrad {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a manual clock moves both of its times when told") {
  ManualClock clock;
  CHECK(clock.Now() == 0ns);
  clock.Advance(1500ms);
  CHECK(clock.Now() == 1500ms);
  CHECK(clock.WallMillis() == 1500);
}

TEST_CASE("the real clock never moves backwards and returns a date of this century") {
  RealClock clock;
  MonoTime last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const MonoTime now = clock.Now();
    REQUIRE(now >= last);
    last = now;
  }
  CHECK(clock.WallMillis() > 1'600'000'000'000);
}

}  // namespace
}  // namespace evergrad
