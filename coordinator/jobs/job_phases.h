// The phases of a job and its state, from the submission to the end. Only this class decides which
// phase follows which event. JobLife and JobEnd have the effects of a phase.
//
//   QUEUED      kNone
//   STARTING    ─▶ kDescribing ─▶ kPlacing
//   RUNNING     ─▶ kTraining ◀─▶ kEvaluating
//               kTraining ─▶ kExporting ─▶ kReporting ─▶ kSaving ─▶ kWriting ─▶ kEnded: SUCCEEDED
//               a rollback of a shard: any phase from kEvaluating to kSaving ─▶ kTraining
//   an error, a cancellation: any phase before ─▶ kSealing ─▶ kSealedReporting ─▶ kSealedSaving
//               ─▶ kSealedExporting ─▶ kWriting ─▶ kEnded: FAILED, CANCELLED
//
// A job without checkpoints, or without anything to report or to export, skips those phases.
// Pure; the control executor's.
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

enum class JobPhase {  // In this order.
  kNone,               // Queued.
  kDescribing,
  kPlacing,
  kTraining,
  kEvaluating,
  kExporting,
  kReporting,        // The owners of the shards say what they hold.
  kSaving,           // The last checkpoint of a job that succeeds.
  kSealing,          // The job ends early: the shards take no more updates [20a].
  kSealedReporting,  // As kReporting,
  kSealedSaving,     // and each shard is saved once more.
  kSealedExporting,  // The weights of a job that has failed.
  kWriting,          // The files of the end.
  kEnded
};
absl::string_view JobPhaseName(JobPhase phase);  // As users see it: "training", …

enum class PhaseEvent {
  kStarted,
  kPlanned,        // The job is described, and its plan is made.
  kPlaced,         // Every shard is at a server.
  kEvaluationDue,  // A barrier is reached that an evaluation follows,
  kEvaluated,
  kTrained,  // or the last one.
  kExported,
  kReported,
  kRolledBack,  // The values of a shard have changed under what follows the training.
  kFailed,      // TakeCause comes first.
  kCancelled,
  kSealed,
  kSealedExportDue,
  kFinished,  // Nothing is left but to write the files.
  kWritten
};

class JobPhases {
 public:
  JobPhase phase() const { return phase_; }
  bool In(JobPhase phase) const { return phase_ == phase; }
  // The state as users see it: a job that is cancelled in the queue is QUEUED until it is
  // CANCELLED.
  JobState state() const { return never_started_ && !ended() ? JobState::kQueued : state_; }
  JobState ending() const { return ending_; }  // The state that it has once its files are written.

  // --- questions
  bool started() const { return state_ != JobState::kQueued; }
  bool never_started() const { return never_started_; }  // Cancelled in the queue.
  bool active() const { return state_ == JobState::kStarting || state_ == JobState::kRunning; }
  bool ended() const { return started() && !active(); }
  // The job ends early, or writes its last files, or has ended.
  bool closing() const { return phase_ >= JobPhase::kSealing; }
  bool grants_stopped() const { return closing() || !active(); }  // Nothing new begins.
  // The job fails, and its last files are not being written yet.
  bool failing() const {
    return closing() && phase_ < JobPhase::kWriting && ending_ == JobState::kFailed;
  }
  // The kind of the closures that are granted in this phase beside the training;
  // WORK_KIND_UNSPECIFIED: there are none.
  v1::WorkKind ReadingKind() const;

  // --- events
  // The phase that follows `event` now; nullopt: the event is refused, because it comes too late or
  // too early.
  std::optional<JobPhase> After(PhaseEvent event) const;
  bool Apply(PhaseEvent event);  // False: it is refused, and nothing has changed.

  // The job fails because of `cause`. The first cause stays, but a user's error replaces a
  // machine's error that it may have led to. Returns whether `cause` is the job's cause now.
  bool TakeCause(v1::ErrorDetail cause, bool users);
  const std::optional<v1::ErrorDetail>& cause() const { return cause_; }
  // Why the job takes no calls of clients; OK: it takes them.
  absl::Status CallsRefusal(absl::string_view job_name) const;

  // --- the window at the beginning of a life of the coordinator (LEDGER line 18): tasks register
  // again, and nothing is granted.
  bool window_open() const { return window_open_; }
  void OpenWindow() { window_open_ = active(); }
  bool CloseWindow() { return std::exchange(window_open_, false); }  // False: it is closed.
  // A restored job resumes its phase once the window has closed.
  void SetRestored() { restored_ = true; }
  bool TakeRestored() { return std::exchange(restored_, false); }

  // --- the journal. A restored job begins again what the journal does not distinguish: evaluation,
  // export and reports.
  void Fill(v1::JobSnapshot* snapshot) const;
  absl::Status Read(const v1::JobSnapshot& snapshot);  // InvalidArgument: unknown names.

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
