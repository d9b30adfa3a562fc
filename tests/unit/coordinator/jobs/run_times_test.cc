// Tests the times that are recorded for a run, such as that of its start, without a Job object.
#include "coordinator/jobs/run_times.h"

#include <catch2/catch.hpp>

namespace evergrad::coordinator {
namespace {

using std::chrono::seconds;

TEST_CASE("the moments of a run survive the journal, and move with a clock that began again") {
  RunTimes times;
  times.submitted_ms = 1;
  times.started_ms = 2;
  times.ended_ms = 3;
  times.submitted_at = seconds(10);
  times.started_at = seconds(20);
  times.ended_at = seconds(25);
  v1::JobSnapshot snapshot;
  times.Fill(&snapshot);
  RunTimes next;
  next.Read(snapshot);
  CHECK(next.submitted_ms == 1);
  CHECK(next.submitted_at == seconds(10));
  CHECK(next.seconds() == 5.0);
  next.Shift(-seconds(15));
  CHECK(next.submitted_at == -seconds(5));
  CHECK(next.started_at == seconds(5));
  CHECK(next.seconds() == 5.0);
  v1::JobStatus status;
  next.FillStatus(&status);
  CHECK(status.submitted_ms() == 1);
  CHECK(status.started_ms() == 2);
  CHECK(status.ended_ms() == 3);
}

}  // namespace
}  // namespace evergrad::coordinator
