// The job that the worker serves: its specification, its plan, and the state that one attempt
// passes to the next. Used on the control executor only, except `compute`, whose methods are called
// on the compute executor.
//
// If the job is unreadable or its plan is inconsistent, the context keeps the error. Check then
// returns this error for each attempt of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/config/job_spec.h"
#include "common/config/job_type.h"
#include "common/metrics/metrics.h"
#include "common/plan/plan.h"
#include "common/time/clock.h"
#include "evergrad/v1/session.pb.h"
#include "worker/params/layout.h"
#include "worker/params/weights.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/compute_job.h"

namespace evergrad::worker {

class JobKind;

class JobContext {
 public:
  struct Environment {
    std::shared_ptr<ComputeBackend> backend;  // shared by the worker's jobs
    DataOptions data;
    metrics::Limit* data_limit = nullptr;         // outlives the job
    Allocator allocate = nullptr;                 // allocates memory for pulled values
    std::vector<const JobKind*> more_kinds = {};  // in addition to the kinds of every worker
  };
  JobContext(const v1::JobInfo& info, Environment environment);

  // Processes a newer message about the same job. The message names the runs folder, and contains
  // the plan once the plan exists.
  void Learn(const v1::JobInfo& info);

  JobUid uid() const { return uid_; }
  const std::string& name() const { return name_; }
  std::uint64_t seed() const { return seed_; }
  const std::string& runs_folder() const { return runs_folder_; }
  // kind() may be called only if Check succeeds.
  const JobKind& kind() const { return *kind_; }
  bool reads_data() const { return spec_ != nullptr && config::TypeOf(*spec_).trains_model; }
  bool pauses_over_budget() const {
    return spec_ != nullptr && spec_->training.on_over_budget == "pause";
  }

  // Returns the input that this kind of work needs.
  ComputeJob::Needs NeedsOf(WorkKind kind) const;
  // Checks whether the job can do work of this kind. The job must be readable, have a kind and,
  // except for a describe, have a plan.
  absl::Status Check(WorkKind kind) const;
  // Returns InvalidArgument if the plan lacks the closure or a target. Must be called after Check,
  // and not for a describe.
  absl::Status CheckPlanHas(const Work& work) const;
  // Returns the examples of an evaluation in the plan.
  plan::ClosureRange EvalRange(const Work& work) const;

  // Fills in job, steps and examples.
  void FillProgress(v1::WorkerProgress* progress) const;

  // Returns nullptr if the job is unreadable (Check).
  const config::JobSpec* spec() const { return spec_.get(); }
  // Both pointers are nullptr until there is a plan (Check).
  const std::shared_ptr<const plan::Plan>& plan() const { return plan_; }
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  PullCache* cache() const { return cache_.get(); }
  // The fingerprint of the training data from which the plan was made; "" if the plan has none.
  const std::string& data_fingerprint() const { return data_fingerprint_; }
  // The compute executor shares this object, and destroys it in the end (TakeCompute). The pointer
  // is null if the job is unreadable.
  const std::shared_ptr<ComputeJob>& compute() const { return compute_; }
  std::shared_ptr<ComputeJob> TakeCompute() { return std::move(compute_); }

  // --- written by the runner and its attempts
  v1::ExportOrder export_order;  // order in the newest grant of an export
  // The version of the map under which the previous attempt pulled every shard together with its
  // last push. These values serve as the first pull of the next attempt.
  std::optional<MapVersion> pulled_ahead;
  std::uint64_t steps = 0, examples = 0;  // trained by this worker
  // The duration of the last training step, from its hand-over to the arrival of its gradients.
  MonoTime step_time{0};
  // The end of the last training step; nullopt if other work was computed since then.
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
  const JobKind* kind_ = nullptr;                // nullptr if spec_error_ is set
  absl::Status spec_error_;
  absl::Status plan_error_ =
      absl::FailedPreconditionError("work was granted before its plan was known");
  std::shared_ptr<const plan::Plan> plan_;  // shared with the batch reader
  std::shared_ptr<const Layout> layout_;    // shared with exchanges and the compute executor
  std::unique_ptr<PullCache> cache_;        // pulled values, in the layout `layout_`
  std::shared_ptr<ComputeJob> compute_;
};

}  // namespace evergrad::worker
