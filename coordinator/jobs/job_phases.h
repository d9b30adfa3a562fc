// The phases and states of a job, from its submission to its end. Only this class decides which
// phase follows which event. JobLife and JobEnd carry out the effects of a phase.
//
//   QUEUED      kNone
//   STARTING    ─▶ kDescribing ─▶ kPlacing
//   RUNNING     ─▶ kTraining ◀─▶ kEvaluating
//               kTraining ─▶ kExporting ─▶ kReporting ─▶ kSaving ─▶ kWriting ─▶ kEnded: SUCCEEDED
//               a rollback of a shard: any phase from kEvaluating to kSaving ─▶ kTraining
//   an error, a cancellation: any phase before ─▶ kSealing ─▶ kSealedReporting ─▶ kSealedSaving
//               ─▶ kSealedExporting ─▶ kWriting ─▶ kEnded: FAILED, CANCELLED
//
// A job that has no checkpoints, nothing to report or nothing to export skips these phases. Pure;
// only the control executor calls it.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "evergrad/v1/api.pb.h"
#include "evergrad/v1/session.pb.h"

namespace evergrad::v1 {
class JobSnapshot;
}  // namespace evergrad::v1

namespace evergrad::coordinator {

enum class JobState { kQueued, kStarting, kRunning, kSucceeded, kFailed, kCancelled };
absl::string_view JobStateName(JobState state);  // "QUEUED", …

enum class JobPhase {  // JobPhases compares phases by this order.
  kNone,               // Queued.
  kDescribing,
  kPlacing,
  kTraining,
  kEvaluating,
  kExporting,
  kReporting,        // The owners of the shards report the contents of the shards.
  kSaving,           // The last checkpoint of a job that succeeds.
  kSealing,          // The job ends early: the shards take no more updates.
  kSealedReporting,  // Like kReporting, after the seal.
  kSealedSaving,     // Each shard is saved once more.
  kSealedExporting,  // The weights of a failed job are exported.
  kWriting,          // The last files are written.
  kEnded
};
absl::string_view JobPhaseName(JobPhase phase);  // The name for users: "training", …

enum class PhaseEvent {
  kStarted,
  kPlanned,        // The job is described, and its plan is made.
  kPlaced,         // Every shard is held by a server.
  kEvaluationDue,  // The job has reached a barrier that needs an evaluation.
  kEvaluated,
  kTrained,  // The job has passed the last barrier.
  kExported,
  kReported,
  kRolledBack,  // A shard was rolled back in a phase after the training.
  kFailed,      // Call TakeCause first.
  kCancelled,
  kSealed,
  kSealedExportDue,
  kFinished,  // Only the last files are left to be written.
  kWritten
};

class JobPhases {
 public:
  JobPhase phase() const { return phase_; }
  bool In(JobPhase phase) const { return phase_ == phase; }
  // Returns the state for users. A job that was cancelled in the queue is QUEUED until its files
  // are written.
  JobState state() const { return never_started_ && !ended() ? JobState::kQueued : state_; }
  // The state that the job gets once its files are written.
  JobState ending() const { return ending_; }

  // --- queries
  bool started() const { return state_ != JobState::kQueued; }
  // True if the job was cancelled in the queue.
  bool never_started() const { return never_started_; }
  bool active() const { return state_ == JobState::kStarting || state_ == JobState::kRunning; }
  bool ended() const { return started() && !active(); }
  // Returns whether the job ends early, writes its last files, or has ended.
  bool closing() const { return phase_ >= JobPhase::kSealing; }
  bool grants_stopped() const { return closing() || !active(); }  // No new work begins.
  // Returns whether the job fails, and has not begun to write its last files.
  bool failing() const {
    return closing() && phase_ < JobPhase::kWriting && ending_ == JobState::kFailed;
  }
  // Returns the kind of the closures other than training that are granted in this phase, or
  // WORK_KIND_UNSPECIFIED if there are none.
  v1::WorkKind ReadingKind() const;

  // --- events.
  // Returns the phase that follows `event` now, or nullopt if the event comes too late or too
  // early.
  std::optional<JobPhase> After(PhaseEvent event) const;
  bool Apply(PhaseEvent event);  // Returns false and changes nothing if the event is refused.

  // Makes `cause` the cause of the job's failure. The first cause stays, except that a user's error
  // replaces a machine's error, which may be a consequence of the user's error. Returns whether
  // `cause` is the job's cause now.
  bool TakeCause(v1::ErrorDetail cause, bool users);
  const std::optional<v1::ErrorDetail>& cause() const { return cause_; }
  // Returns OK if the job takes calls of clients, else the error for them.
  absl::Status CallsRefusal(absl::string_view job_name) const;

  // --- the window at the beginning of a life of the coordinator (LEDGER line 18): tasks register
  // again, and nothing is granted.
  bool window_open() const { return window_open_; }
  void OpenWindow() { window_open_ = active(); }
  // Returns false if the window is already closed.
  bool CloseWindow() { return std::exchange(window_open_, false); }
  // A restored job resumes its phase once the window has closed.
  void SetRestored() { restored_ = true; }
  bool TakeRestored() { return std::exchange(restored_, false); }

  // --- the journal. A restored job begins the evaluation, the export or the report again, because
  // the journal does not distinguish these phases.
  void Fill(v1::JobSnapshot* snapshot) const;
  absl::Status Read(const v1::JobSnapshot& snapshot);  // Returns InvalidArgument for unknown names.

 private:
  JobState state_ = JobState::kQueued;
  JobState ending_ = JobState::kSucceeded;
  JobPhase phase_ = JobPhase::kNone;
  bool never_started_ = false;
  std::optional<v1::ErrorDetail> cause_;
  bool cause_is_users_ = false;
  bool window_open_ = false, restored_ = false;
};

}  // namespace evergrad::coordinator
