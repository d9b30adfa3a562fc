// A closure of a training job. Each step computes the gradients of one batch.
//
// A gradient that is not finite, or that exceeds its wire type, is a user error. With
// `skip_not_finite` the update is skipped instead. A step whose loss scale was too large is always
// skipped.
#pragma once

#include "worker/runner/batch_feed.h"
#include "worker/runner/device_report.h"
#include "worker/runner/update_run.h"

namespace evergrad::worker {

class TrainingRun final : public UpdateRun {
 public:
  struct Options {
    BatchStreams* streams = nullptr;  // outlives the run; the stream of the work is open
    DeviceReport* device = nullptr;   // outlives the run
    bool skip_not_finite = false;
  };
  TrainingRun(const Environment& environment, Work work, const Measures& measures,
              const Options& options)
      : UpdateRun(environment, work, measures,
                  environment.job->plan()->Closure(work.closure).steps),
        options_(options) {}

  void Start() override;
  void FillDone(v1::Done* done) override;

 private:
  bool InputReady() override;
  void ComputeStep() override;
  void OnStep(const BatchFeed::Taken& taken, absl::StatusOr<ComputeJob::Step> step);

  void CountWaitOfDevice();
  void AnnounceLater();
  // Returns the reason to skip the update, or "" if the update must be pushed. The non-finite
  // numbers of a skipped step are not added to any sum. If the worker must not skip such updates,
  // returns a user error.
  absl::StatusOr<std::string> CheckFinite(const ReadyBatch& batch, ComputeJob::Step* step);
  absl::Status NotFinite(const ReadyBatch& batch, const ComputeJob::Step& step) const;
  std::vector<ShardId> DenseTargets() const;

  const Options options_;
  std::shared_ptr<BatchFeed> feed_;          // shared with its own callbacks
  std::optional<MonoTime> batch_missed_at_;  // time at which the next step first lacked its batch
  bool batch_came_ = false;                  // the wait for the batch was recorded
  MonoTime step_begun_{0};           // time at which the step was handed to the compute executor
  std::vector<MetricSum> measured_;  // in the order of the model's metrics
};

}  // namespace evergrad::worker
