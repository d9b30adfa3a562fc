// Opens the input of one job (data sets, model) before an attempt begins, and checks that the data
// equal the data from which the plan was made [LEDGER 33].
//
// Used on the control executor. The opening runs on the compute executor and resumes on the control
// executor. A destroyed opener makes no callbacks.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/fault/failpoints.h"
#include "common/runtime/executor.h"
#include "common/time/clock.h"
#include "worker/data/dataset.h"
#include "worker/runner/attempt_book.h"
#include "worker/runner/compute_job.h"
#include "worker/runner/compute_queue.h"
#include "worker/runner/job_context.h"

namespace evergrad::worker {

class InputOpener : public std::enable_shared_from_this<InputOpener> {
 public:
  // All objects outlive the opener; `failpoints` and `clock` may be null.
  struct Environment {
    runtime::Executor* control = nullptr;
    ComputeQueue* compute = nullptr;
    fault::Failpoints* failpoints = nullptr;
    const Clock* clock = nullptr;
  };
  // A function that is called when the opening for this attempt has ended, with or without an
  // error.
  using OnOpened = std::function<void(Attempt, const absl::Status&)>;

  InputOpener(Environment environment, std::shared_ptr<ComputeJob> compute, OnOpened on_opened);

  // Returns whether all objects in `needs` are open. If one is not open, starts to open it for
  // `attempt`, unless an opening is in progress, and calls `on_opened` when the opening has ended.
  // After an error, the next call tries again.
  bool Open(const ComputeJob::Needs& needs, Attempt attempt);
  bool opening() const { return opening_; }

  // Returns an input error of this worker (Shortfall::kInput) if the open data differ from the
  // plan's. The next Open then opens the data again, at most once a second, because the user may
  // have put the right data in place.
  absl::Status CheckData(const JobContext& job, const Work& work);

  // These functions return the data sets, or nullptr for a data set that is not open.
  const std::shared_ptr<const Dataset>& train() const { return train_; }
  const std::shared_ptr<const Dataset>& eval() const { return eval_; }

 private:
  struct Input {
    absl::Status status;
    std::shared_ptr<const Dataset> train, eval;
  };
  void Opened(const ComputeJob::Needs& needs, Attempt attempt, Input input);

  const Environment env_;
  const std::shared_ptr<ComputeJob> compute_;  // shared with the job and the compute executor
  const OnOpened on_opened_;
  ComputeJob::Needs opened_;
  bool opening_ = false, close_first_ = false;
  MonoTime opened_at_{0};
  std::shared_ptr<const Dataset> train_, eval_;  // shared with compute_ and the batch reader
};

// A pure function that makes the check of InputOpener::CheckData. `train` and `eval` may be null.
absl::Status CompareWithPlan(const JobContext& job, const Work& work, const Dataset* train,
                             const Dataset* eval);

}  // namespace evergrad::worker
