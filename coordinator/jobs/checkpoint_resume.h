// Continues a job from the checkpoint of a former job of the same name (LEDGER line 28).
//
//   Look ─▶ the file thread reads the checkpoints ─▶ Hooks::done, or Fail
//   ─▶ the job makes its ClosureBook ─▶ Apply: ClosureBook, EpochAccount and WorkerClaims take over
//   the former job's work
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host;
// checkpoints are read on the file thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "coordinator/checkpoints/checkpoints.h"
#include "coordinator/closures/closure_book.h"
#include "coordinator/jobs/checkpoint_rounds.h"
#include "coordinator/jobs/epoch_account.h"
#include "coordinator/jobs/job_host.h"
#include "coordinator/jobs/worker_claims.h"

namespace evergrad::coordinator {

class CheckpointResume : private JobPart {
 public:
  struct Hooks {
    // Called when the search has ended, whether or not it found a checkpoint.
    std::function<void()> done;
    std::function<EpochAccount::Context()> account_context;
  };
  // The pointers outlive this object.
  CheckpointResume(const JobPart& part, EpochAccount* epochs, WorkerClaims* claims,
                   CheckpointRounds* rounds, Hooks hooks)
      : JobPart(part),
        epochs_(epochs),
        claims_(claims),
        rounds_(rounds),
        hooks_(std::move(hooks)) {}

  // Begins the search. The job must have its plan, and no ClosureBook yet. Calls Hooks::done later,
  // unless the job has ended by then or fails because no checkpoint can be used.
  void Look();
  // Lets the new ClosureBook take over the closures of the former job, and appends the record of
  // this change to `begun`. Does nothing if no checkpoint was found.
  void Apply(Record* begun);

 private:
  void OnFound(const absl::StatusOr<ResumePoint>& point);
  void TakeOver(const ResumePoint& point, const Resumption& resumption);

  EpochAccount* const epochs_;
  WorkerClaims* const claims_;
  CheckpointRounds* const rounds_;
  const Hooks hooks_;
  // This member and resumption_ are set by OnFound, and cleared by Apply.
  std::optional<ResumePoint> point_;
  std::optional<Resumption> resumption_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace evergrad::coordinator
