// Liveness: whether the threads of this process make progress, whatever its peers do.
//
// Each watched executor runs a tiny task every `period`. An executor that has run no task for
// `stuck_after` counts as stuck: one of its tasks does not end, or waits for a lock that no thread
// releases. Only threads that never block are watched. A thread that reads files or computes can be
// busy for longer without being stuck.
//
// Time in which the whole process stood still (a stopped process, a paused machine) does not count,
// because no thread could run then.
#pragma once

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/health/unmet.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"

namespace evergrad::health {

struct LivenessOptions {
  MonoTime period = std::chrono::seconds(1);        // must be far below `stuck_after`
  MonoTime stuck_after = std::chrono::seconds(30);  // time in which the process runs
};

// Thread-safe.
class Liveness {
 public:
  // `clock` outlives the object and the executors that it watches.
  explicit Liveness(const Clock* clock, LivenessOptions options = {});

  // Watches `executor` under `name` until the executor is shut down. The executor may be shut down
  // before or after this object is destroyed.
  void Watch(absl::string_view name, runtime::Executor* executor);
  // Measures the time in which the process runs with a task on `executor`, which has no other
  // tasks. Without such an executor, only the tasks of watched executors and calls of Stuck()
  // measure this time. If all threads are stuck at once, only repeated calls of Stuck() notice it,
  // and not before they have been made for `stuck_after`.
  void MeasureTimeOn(runtime::Executor* executor);

  // Returns the stuck executors with the time since their last task, in the order of Watch.
  std::vector<Unmet> Stuck() const;

 private:
  struct State;
  class Watched;
  static void RunAgain(runtime::Executor* executor, const std::shared_ptr<Watched>& watched);
  static void MeasureAgain(runtime::Executor* executor, const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the tasks of the executors
};

}  // namespace evergrad::health
