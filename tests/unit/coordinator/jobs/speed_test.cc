#include "coordinator/jobs/training_rate.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace evergrad::coordinator {
namespace {

TEST_CASE("the speed over a time that is too short to measure is absent") {
  CHECK(MeasuredSpeed(1000, 0.5) == 2000);
  CHECK(MeasuredSpeed(1000, kTimedSecondsMin) == 1000 / kTimedSecondsMin);
  for (const double seconds : {0.0, 1e-9, 0.009, -1.0, std::nan("")})
    CHECK(std::isnan(MeasuredSpeed(1000, seconds)));
  CHECK(std::isnan(MeasuredSpeed(0, 5)));
}

}  // namespace
}  // namespace evergrad::coordinator
