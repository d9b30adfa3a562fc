#include "coordinator/jobs/job_phases.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "coordinator/jobs/job_error.h"
#include "evergrad/v1/journal.pb.h"

namespace evergrad::coordinator {
namespace {

struct Rule {
  PhaseEvent event;
  JobPhase first, last;  // The event is accepted in the phases from `first` to `last`.
  JobPhase next;         // The phase that follows.
};

constexpr Rule kRules[] = {
    {PhaseEvent::kStarted, JobPhase::kNone, JobPhase::kNone, JobPhase::kDescribing},
    {PhaseEvent::kPlanned, JobPhase::kDescribing, JobPhase::kDescribing, JobPhase::kPlacing},
    {PhaseEvent::kPlaced, JobPhase::kPlacing, JobPhase::kPlacing, JobPhase::kTraining},
    {PhaseEvent::kEvaluationDue, JobPhase::kTraining, JobPhase::kTraining, JobPhase::kEvaluating},
    {PhaseEvent::kEvaluated, JobPhase::kEvaluating, JobPhase::kEvaluating, JobPhase::kTraining},
    {PhaseEvent::kTrained, JobPhase::kTraining, JobPhase::kTraining, JobPhase::kExporting},
    {PhaseEvent::kExported, JobPhase::kExporting, JobPhase::kExporting, JobPhase::kReporting},
    {PhaseEvent::kReported, JobPhase::kReporting, JobPhase::kReporting, JobPhase::kSaving},
    {PhaseEvent::kFinished, JobPhase::kReporting, JobPhase::kSaving, JobPhase::kWriting},
    {PhaseEvent::kRolledBack, JobPhase::kEvaluating, JobPhase::kSaving, JobPhase::kTraining},

    {PhaseEvent::kFailed, JobPhase::kDescribing, JobPhase::kSaving, JobPhase::kSealing},
    {PhaseEvent::kCancelled, JobPhase::kNone, JobPhase::kSaving, JobPhase::kSealing},
    {PhaseEvent::kSealed, JobPhase::kSealing, JobPhase::kSealing, JobPhase::kSealedReporting},
    {PhaseEvent::kReported, JobPhase::kSealedReporting, JobPhase::kSealedReporting,
     JobPhase::kSealedSaving},
    {PhaseEvent::kSealedExportDue, JobPhase::kSealedReporting, JobPhase::kSealedSaving,
     JobPhase::kSealedExporting},
    {PhaseEvent::kFinished, JobPhase::kSealing, JobPhase::kSealedExporting, JobPhase::kWriting},

    {PhaseEvent::kWritten, JobPhase::kWriting, JobPhase::kWriting, JobPhase::kEnded},
};

absl::StatusOr<JobState> JobStateOf(absl::string_view name) {
  for (const JobState state : {JobState::kQueued, JobState::kStarting, JobState::kRunning,
                               JobState::kSucceeded, JobState::kFailed, JobState::kCancelled}) {
    if (JobStateName(state) == name) return state;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown state of a job: state=", name));
}

// Returns the phase that the journal stores in place of `phase`. A restored job begins in this
// phase.
JobPhase JournaledAs(JobPhase phase) {
  if (phase >= JobPhase::kEvaluating && phase <= JobPhase::kSaving) return JobPhase::kTraining;
  if (phase >= JobPhase::kSealing && phase <= JobPhase::kSealedExporting) return JobPhase::kSealing;
  return phase;
}

}  // namespace

absl::string_view JobStateName(JobState state) {
  switch (state) {
    case JobState::kQueued: return "QUEUED";
    case JobState::kStarting: return "STARTING";
    case JobState::kRunning: return "RUNNING";
    case JobState::kSucceeded: return "SUCCEEDED";
    case JobState::kFailed: return "FAILED";
    case JobState::kCancelled: return "CANCELLED";
  }
  return "UNKNOWN";
}

absl::string_view JobPhaseName(JobPhase phase) {
  switch (phase) {
    case JobPhase::kNone:
    case JobPhase::kEnded: return "";
    case JobPhase::kDescribing: return "describing";
    case JobPhase::kPlacing: return "placing";
    case JobPhase::kTraining: return "training";
    case JobPhase::kEvaluating: return "evaluating";
    case JobPhase::kSealing: return "sealing";
    case JobPhase::kReporting:
    case JobPhase::kSealedReporting: return "reporting";
    case JobPhase::kSaving:
    case JobPhase::kSealedSaving: return "saving";
    case JobPhase::kExporting:
    case JobPhase::kSealedExporting: return "exporting";
    case JobPhase::kWriting: return "writing";
  }
  return "";
}

v1::WorkKind JobPhases::ReadingKind() const {
  switch (phase_) {
    case JobPhase::kDescribing: return v1::DESCRIBE;
    case JobPhase::kEvaluating: return v1::EVALUATE;
    case JobPhase::kExporting:
    case JobPhase::kSealedExporting: return v1::EXPORT;
    default: return v1::WORK_KIND_UNSPECIFIED;
  }
}

// ---------------------------------------------------------------- events

std::optional<JobPhase> JobPhases::After(PhaseEvent event) const {
  for (const Rule& rule : kRules) {
    if (rule.event == event && phase_ >= rule.first && phase_ <= rule.last) return rule.next;
  }
  return std::nullopt;
}

bool JobPhases::Apply(PhaseEvent event) {
  const std::optional<JobPhase> next = After(event);
  if (!next) return false;
  if (event == PhaseEvent::kFailed) ending_ = JobState::kFailed;
  if (event == PhaseEvent::kCancelled) ending_ = JobState::kCancelled;
  if (event == PhaseEvent::kPlaced) state_ = JobState::kRunning;
  if (event == PhaseEvent::kWritten) state_ = ending_;
  if (phase_ == JobPhase::kNone) {
    state_ = JobState::kStarting;
    never_started_ = event == PhaseEvent::kCancelled;
  }
  phase_ = *next;
  return true;
}

bool JobPhases::TakeCause(v1::ErrorDetail cause, bool users) {
  if (!After(PhaseEvent::kFailed) && (!failing() || !users || cause_is_users_)) return false;
  cause_ = std::move(cause);
  cause_is_users_ = users;
  return true;
}

absl::Status JobPhases::CallsRefusal(absl::string_view job_name) const {
  if (!closing()) return absl::OkStatus();
  if (cause_) {
    const absl::Status cause = client::FromErrorDetail(*cause_);
    const absl::Status text(cause.code(), absl::StrCat("the job has failed: job=", job_name,
                                                       " cause=", ErrorText(*cause_)));
    return cause_is_users_ ? UserError(text) : WithRetryable(text, false);
  }
  if (ending_ == JobState::kCancelled)
    return UserError(absl::CancelledError(absl::StrCat("the job was cancelled: job=", job_name)));
  return UserError(absl::FailedPreconditionError(
      absl::StrCat("the job has ended: job=", job_name, " state=", JobStateName(ending_))));
}

// ---------------------------------------------------------------- the journal

void JobPhases::Fill(v1::JobSnapshot* snapshot) const {
  snapshot->set_state(std::string(JobStateName(state_)));
  snapshot->set_ending(std::string(JobStateName(ending_)));
  snapshot->set_phase(std::string(JobPhaseName(JournaledAs(phase_))));
  snapshot->set_never_started(never_started_);
  if (cause_) *snapshot->mutable_first_cause() = *cause_;
  snapshot->set_cause_is_users(cause_is_users_);
}

absl::Status JobPhases::Read(const v1::JobSnapshot& snapshot) {
  EG_ASSIGN_OR_RETURN(state_, JobStateOf(snapshot.state()));
  EG_ASSIGN_OR_RETURN(ending_, JobStateOf(snapshot.ending()));
  phase_ = ended() ? JobPhase::kEnded : JobPhase::kNone;
  if (active()) {
    for (const JobPhase phase : {JobPhase::kDescribing, JobPhase::kPlacing, JobPhase::kTraining,
                                 JobPhase::kSealing, JobPhase::kWriting}) {
      if (JobPhaseName(phase) == snapshot.phase()) phase_ = phase;
    }
    if (phase_ == JobPhase::kNone)
      return absl::InvalidArgumentError(absl::StrCat("unknown phase: phase=", snapshot.phase()));
  }
  never_started_ = snapshot.never_started();
  if (snapshot.has_first_cause()) cause_ = snapshot.first_cause();
  cause_is_users_ = snapshot.cause_is_users();
  return absl::OkStatus();
}

}  // namespace evergrad::coordinator
