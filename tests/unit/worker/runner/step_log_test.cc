#include "worker/runner/step_log.h"

#include <catch2/catch.hpp>

namespace evergrad::worker {
namespace {

v1::StepRecord Record(std::uint64_t step, double loss) {
  v1::StepRecord record;
  record.set_global_step(step);
  record.set_loss(loss);
  return record;
}

TEST_CASE("a step log keeps the newest records for one heartbeat, and counts those it dropped") {
  metrics::Registry registry;
  metrics::Limit limit(registry, "step_records", "records", 2);
  StepLog log(2, &limit);
  v1::WorkerProgress empty;
  log.MoveTo(&empty);
  CHECK(empty.steps_log_size() == 0);
  CHECK(empty.loss() == 0);

  for (const std::uint64_t step : {1, 2, 3}) log.Add(Record(step, 0.5 * static_cast<double>(step)));
  CHECK(limit.refused.value() == 1);
  CHECK(limit.current.value() == 2);
  v1::WorkerProgress progress;
  log.MoveTo(&progress);
  REQUIRE(progress.steps_log_size() == 2);
  CHECK(progress.steps_log(0).global_step() == 2);
  CHECK(progress.steps_log(1).global_step() == 3);
  CHECK(progress.loss() == 1.5);
  CHECK(limit.current.value() == 0);

  log.Add(Record(4, 2));
  log.Clear();
  CHECK(limit.current.value() == 0);
  v1::WorkerProgress next;
  log.MoveTo(&next);
  CHECK(next.steps_log_size() == 0);
  CHECK(next.loss() == 2);  // the loss of the last step
}

}  // namespace
}  // namespace evergrad::worker
