// Tests how the training rate of a job is measured.
#include "coordinator/jobs/training_rate.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("the speed is averaged over the length of its samples, and an instant is no sample") {
  TrainingRate rate(100);
  rate.Begin(seconds(1), 0);
  CHECK_FALSE(rate.IsDue(milliseconds(1499)));
  CHECK(rate.IsDue(milliseconds(1500)));
  CHECK_FALSE(rate.Sample(seconds(1), milliseconds(1005), 8));
  REQUIRE(rate.Sample(seconds(1), milliseconds(1500), 8));
  CHECK(rate.rate() == 16);
  CHECK(rate.examples() == 8);
  REQUIRE(rate.Sample(seconds(1), milliseconds(2000), 8));
  CHECK(rate.rate() == Approx(0.6 * 16));
  REQUIRE(rate.Sample(seconds(1), milliseconds(3000), 8));
  CHECK(rate.rate() == Approx(0.6 * 0.6 * 0.6 * 16));
  REQUIRE(rate.curve().points().size() == 3);
  CHECK(rate.curve().points()[2].x == 2);
}

TEST_CASE("omitted time of a restart does not lower the speed") {
  TrainingRate rate(100);
  rate.Begin(seconds(1), 0);
  rate.Begin(seconds(100), 0);
  REQUIRE(rate.Sample(seconds(1), seconds(101), 16));
  CHECK(rate.rate() == 16);
}

TEST_CASE("the rate and its curve are restored from a snapshot and later notes") {
  TrainingRate rate(100);
  rate.Begin(seconds(1), 0);
  rate.Sample(seconds(1), seconds(2), 16);
  v1::JobSnapshot snapshot;
  rate.Fill(&snapshot);
  v1::JobNote note;
  rate.Sample(seconds(1), seconds(3), 17);
  rate.FillNote(&note);
  TrainingRate back(100);
  back.Read(snapshot);
  back.ReadNote(note);
  back.ReadNote(v1::JobNote());  // a note without a sample
  v1::JobSnapshot was, is;
  rate.Fill(&was);
  back.Fill(&is);
  CHECK(is.SerializeAsString() == was.SerializeAsString());
}

}  // namespace
}  // namespace evergrad::coordinator
