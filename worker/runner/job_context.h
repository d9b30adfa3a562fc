// The job that the worker serves, for the control executor: its specification, its plan, and the
// state that passes from one attempt to the next. Control executor only, but for `compute`,
// whose methods belong to the compute executor.
//
// A job that this worker cannot read, and a plan that does not fit together, are kept as errors
// which end each attempt of the job (Check).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/metrics/metrics.h"
#include "common/plan/plan.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "worker/params/layout.h"
#include "worker/params/weights.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/compute_job.h"

namespace evergrad::worker {

class JobContext {
 public:
  struct Environment {
    std::shared_ptr<ComputeBackend> backend;  // shared by the worker's jobs
    DataOptions data;
    metrics::Limit* data_limit = nullptr;  // outlives the job
    bool allow_counting = false;
    Room room = nullptr;  // for pulled values
  };
  JobContext(const v1::JobInfo& info, Environment environment);

  // A newer message about the same job: the runs folder, and the plan once it is made.
  void Learn(const v1::JobInfo& info);

  JobUid uid() const { return uid_; }
  const std::string& name() const { return name_; }
  std::uint64_t seed() const { return seed_; }
  const std::string& runs_folder() const { return runs_folder_; }
  bool counting() const { return spec_ != nullptr && spec_->type == "counting"; }
  bool functions() const { return spec_ != nullptr && spec_->type == "functions"; }
  bool reads_data() const { return !counting() && !functions(); }
  bool pauses_over_budget() const {
    return spec_ != nullptr && spec_->training.on_over_budget == "pause";
  }

  // The input that such work needs.
  ComputeJob::Needs NeedsOf(WorkKind kind) const;
  // Whether work of this kind is possible at all: the job can be read, and, except for a describe,
  // has a plan.
  absl::Status Check(WorkKind kind) const;
  // InvalidArgument: closure or targets are not of the plan. After Check, not for a describe.
  absl::Status CheckPlanHas(const Work& work) const;
  // The examples of an evaluation that the plan has.
  plan::ClosureRange EvalRange(const Work& work) const;

  // Job, steps and examples.
  void FillProgress(v1::WorkerProgress* progress) const;

  // Null if the job cannot be read (Check).
  const config::JobSpec* spec() const { return spec_.get(); }
  // These are null until there is a plan (Check).
  const std::shared_ptr<const plan::Plan>& plan() const { return plan_; }
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  PullCache* cache() const { return cache_.get(); }
  // Of the training data that the plan was made from; "" if the plan does not say.
  const std::string& data_fingerprint() const { return data_fingerprint_; }
  // Shared with the tasks of the compute executor. The last owner is on the compute executor
  // (TakeCompute). Null if the job cannot be read.
  const std::shared_ptr<ComputeJob>& compute() const { return compute_; }
  std::shared_ptr<ComputeJob> TakeCompute() { return std::move(compute_); }

  // --- written by the runner and its attempts
  v1::ExportOrder export_order;  // of the newest grant of an export
  // The last push of the attempt before has pulled every shard under this map: these values serve
  // as the first pull of the next one.
  std::optional<MapVersion> pulled_ahead;
  std::uint64_t steps = 0, examples = 0;  // trained here
  MonoTime step_time{0};  // of the last training step, from hand-over until its gradients were here
  // When the last training step ended, if nothing else was computed since.
  std::optional<MonoTime> step_ended;
  UniqueIds unique_ids;  // scratch memory for the rows that a batch reads

 private:
  void Read(const v1::JobInfo& info);
  void SetPlan(const v1::Plan& proto);

  const Environment env_;
  const JobUid uid_;
  const std::string name_;
  const std::uint64_t seed_;
  std::string runs_folder_, data_fingerprint_;
  std::shared_ptr<const config::JobSpec> spec_;  // shared with compute_
  absl::Status spec_error_;
  absl::Status plan_error_ =
      absl::FailedPreconditionError("work was granted before its plan was known");
  std::shared_ptr<const plan::Plan> plan_;  // shared with the batch reader
  std::shared_ptr<const Layout> layout_;    // shared with exchanges and the compute executor
  std::unique_ptr<PullCache> cache_;        // of layout_
  std::shared_ptr<ComputeJob> compute_;
};

}  // namespace evergrad::worker
