#include "coordinator/jobs/checkpoint_resume.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/jobs/job_error.h"

namespace evergrad::coordinator {
namespace {

constexpr std::size_t kLostTextMax = 200;

}  // namespace

void CheckpointResume::Look() {
  fs::FileSystem* const disk = &host_->file_system();
  std::weak_ptr<bool> alive = alive_;
  host_->OnCheckpointThread([this, alive, disk, spec = id_.spec.checkpoint, runs = id_.runs_folder,
                             name = id_.spec.name, uid = id_.uid, owner = id_.owner] {
    absl::StatusOr<ResumePoint> point = FindResumePoint(*disk, spec, runs, name, uid, owner);
    return [this, alive, point = std::move(point)] {
      if (!alive.expired() && !job_.grants_stopped() && book_ == nullptr) OnFound(point);
    };
  });
}

void CheckpointResume::OnFound(const absl::StatusOr<ResumePoint>& point) {
  if (absl::IsNotFound(point.status())) {
    job_.Event(
        "state",
        absl::StrCat("there is no checkpoint to resume from, so the job begins at its first step: ",
                     point.status().message()));
    return hooks_.done();
  }
  if (!point.ok()) {
    // If another setting or other files would help, the error is the user's. Otherwise the cause is
    // a disk that cannot be read now.
    const bool user = BlameOf(point.status()) == Blame::kUser || SaveErrorIsFinal(point.status());
    const absl::Status cause(point.status().code(),
                             absl::StrCat("checkpoint.resume: ", point.status().message()));
    return job_.Fail(
        MakeError(user ? UserError(cause) : cause, user ? "user" : "internal", "coordinator"),
        user);
  }
  absl::StatusOr<Resumption> resumption = PlanResumption(*point, plan_message_, id_.uid);
  if (!resumption.ok())
    return job_.Fail(MakeError(UserError(resumption.status()), "user", "coordinator"), true);
  for (const absl::Status& passed : point->passed_over)
    job_.Event("warning", absl::StrCat("a newer checkpoint is skipped: ", passed.message()));
  point_ = *point;
  resumption_ = *std::move(resumption);
  hooks_.done();
}

void CheckpointResume::Apply(Record* begun) {
  if (!resumption_) return;
  AppendRecord(book_->ResumeFrom(resumption_->snapshots), begun);
  TakeOver(*point_, *resumption_);
  resumption_.reset();
  point_.reset();
}

// Counts the work of the former job as done. The manifest has the losses of each complete epoch;
// the losses of an incomplete epoch are not known.
void CheckpointResume::TakeOver(const ResumePoint& point, const Resumption& resumption) {
  claims_->TakeOver(point, resumption.same_plan);
  const IntervalSet& dead = book_->durable().dead;
  if (!dead.empty()) {
    // Users cannot cancel closures of a training job, so the shards refuse only closures whose
    // updates were lost with a server.
    std::string which = dead.ToString();
    if (which.size() > kLostTextMax) which = absl::StrCat(which.substr(0, kLostTextMax), "...");
    job_.Event("lost", absl::StrCat("updates that the earlier job lost when a server died are not "
                                    "recovered; ",
                                    dead.size(), dead.size() == 1 ? " closure is" : " closures are",
                                    " not run again: ", which));
  }
  epochs_->Resume(book_->durable().succeeded, dead, point.manifest, resumption.same_plan,
                  hooks_.account_context());
  rounds_->SetResumedFrom(point.uri);
  job_.Event("state",
             absl::StrCat("resumed at step ", epochs_->steps_done(), " of ", epochs_->steps_total(),
                          " from ", point.uri, ": ", resumption.text));
  job_.SayNotReproducible(
      "the job resumes from a checkpoint with shards that were saved at different moments");
}

}  // namespace evergrad::coordinator
