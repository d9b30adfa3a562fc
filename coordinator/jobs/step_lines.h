// Writes the steps of accepted closures as lines of metrics.jsonl and as points of the loss curve.
// Pure; only the control executor calls it.
//
// At most `burst` lines are written at once, and `per_second` lines per second in the long run. A
// fast job therefore does not write faster than a program can read. Lines that are left out, or for
// which the sink has no space, are counted.
#pragma once

#include <cstdint>
#include <vector>

#include <google/protobuf/repeated_ptr_field.h>

#include "common/base/ids.h"
#include "common/plan/plan.h"
#include "common/time/clock.h"
#include "coordinator/jobs/json_lines.h"
#include "coordinator/jobs/training_rate.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::coordinator {

struct TrainedStep {
  std::uint64_t global_step = 0;
  double loss = 0;
  std::uint32_t examples = 0;
};
std::vector<TrainedStep> StepsOf(const google::protobuf::RepeatedPtrField<v1::StepRecord>& records);

class StepLines {
 public:
  struct Options {
    std::uint32_t burst = 20000, per_second = 500;
    std::uint32_t curve_points_max = 4000;
  };
  StepLines(const Options& options, MonoTime now)
      : options_(options),
        tokens_(options.burst),
        tokens_at_(now),
        curve_(options.curve_points_max) {}

  // Writes the steps of a closure. Steps outside `range`, the range of the closure, are ignored.
  // The global step that is shown is the position in the plan plus `steps_before`. If `lines` is
  // null, only the curve is updated.
  void Write(ClosureId closure, const plan::ClosureRange& range, std::int64_t steps_before,
             const std::vector<TrainedStep>& steps, MonoTime now, LineSink* lines);
  std::uint64_t dropped() const { return dropped_; }
  // Restores the number from the journal.
  void set_dropped(std::uint64_t lines) { dropped_ = lines; }
  const Curve& curve() const { return curve_; }
  Curve& curve() { return curve_; }

 private:
  const Options options_;
  double tokens_;  // Number of lines that may be written now.
  MonoTime tokens_at_;
  std::uint64_t dropped_ = 0;
  Curve curve_;
};

}  // namespace evergrad::coordinator
