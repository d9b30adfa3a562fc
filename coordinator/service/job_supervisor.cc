#include "coordinator/service/job_supervisor.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/task_answers.h"

namespace evergrad::coordinator {

absl::Status JobSupervisor::Recover(JobHost* host, const JobOptions& options) {
  absl::StatusOr<std::vector<JobUid>> stored = parts_.store->ListJobs();
  if (!stored.ok()) return stored.status();
  absl::Status refused;
  for (const JobUid uid : *stored) {
    absl::StatusOr<StoredJob> loaded = parts_.store->LoadJob(uid);
    if (!loaded.ok()) return loaded.status();
    absl::StatusOr<std::unique_ptr<Job>> job = Job::Restore(host, options, uid, *loaded);
    if (!job.ok()) {
      parts_.logger->Error(job.status().message());
      if (refused.ok()) refused = job.status();
      continue;
    }
    parts_.logger->Info(absl::StrCat("restored a job of the journal: job_uid=", JobUidString(uid),
                                     " name=", (*job)->name(),
                                     " state=", JobStateName((*job)->state())));
    // All running jobs of the journal continue, even if there are more than --jobs-running-max.
    if (parts_.jobs->Restore(*std::move(job))) parts_.division->Restore(uid);
  }
  if (refused.ok()) return refused;
  return absl::Status(
      refused.code(),
      absl::StrCat(refused.message(), "; the journal was not changed: ",
                   absl::IsDataLoss(refused)
                       ? ""
                       : "start the version that ran the job, to let it end or to cancel it, or ",
                   "start with another --state-dir and submit the job again; the job can resume "
                   "from its checkpoints, which are not in the journal (add --forget-unknown-jobs "
                   "if parameter servers still hold shards of the job)"));
}

void JobSupervisor::JobChanged() {
  if (change_posted_ || parts_.life->stopped) return;
  change_posted_ = true;
  parts_.control->Post([this] {
    change_posted_ = false;
    if (!parts_.life->stopped) AfterChange();
  });
}

void JobSupervisor::AfterChange() {
  on_change_();
  for (const JobUid uid : parts_.jobs->RemoveEnded()) {
    parts_.division->End(uid);
    parts_.metrics->work_times.EndJob(uid);
  }
  // All jobs are checked, because a job that is cancelled in the queue ends without having run.
  for (const auto& [uid, job] : parts_.jobs->all()) {
    if (job->TakeEnd()) parts_.metrics->ended.Add();
  }
  ForgetOldJobs();
  StartNext();
  parts_.drains->CheckAll();
}

void JobSupervisor::StartNext() {
  if (!parts_.life->serving() || !parts_.store_watch->no_new_jobs().ok()) return;
  while (Job* job = parts_.jobs->TakeNext()) {
    parts_.division->Begin(job->uid());
    IntroduceTasks(*job);
    job->Start();
  }
  parts_.division->DivideSoon();
  parts_.division->Tick(parts_.clock->Now(), true);
}

// Introduces the tasks that registered before the job began: all servers, and the workers that
// serve no job.
void JobSupervisor::IntroduceTasks(Job& job) {
  for (const auto& [task, number] : parts_.sessions->tasks()) {
    const TaskEntry* entry = parts_.membership->Find(task);
    if (entry == nullptr) continue;
    if (entry->role == Role::kWorker &&
        (parts_.JobOf(task) != nullptr || parts_.reports->IsCordoned(task)))
      continue;
    Introduce(job, task);
  }
}

void JobSupervisor::Introduce(Job& job, TaskId task) {
  const TaskEntry* entry = parts_.membership->Find(task);
  const TaskReport* report = parts_.reports->Find(task);
  Session* session = parts_.sessions->Of(task);
  if (entry == nullptr || report == nullptr || session == nullptr || !entry->session_open ||
      entry->state == TaskState::kGone)
    return;
  v1::Registered said;
  if (entry->role == Role::kWorker) {
    parts_.division->Assign(task, job.uid());
    job.AdmitWorker(task, entry->identity, entry->backoff_until, std::nullopt, false, report->hello,
                    &said);
    if (!session->spoke) job.Withhold(task);
  } else if (absl::Status status =
                 job.AdmitServer(task, entry->identity, std::nullopt, false, report->hello, &said);
             !status.ok()) {
    return;  // cannot happen: the stored Hello contains no shards
  }
  for (const v1::CoordinatorMessage& message : JobAndMap(std::move(said)))
    parts_.sessions->Queue(*session, message);
  job.Ready(task);
  if (entry->leaving) job.OnLeaving(task, report->leaving, parts_.drains->Waits(task));
}

void JobSupervisor::ForgetOldJobs() {
  for (const JobUid uid : parts_.jobs->EndedBeyond(parts_.options->jobs_kept_max)) {
    if (parts_.store->persistent()) {
      if (absl::Status removed = parts_.store->Remove(uid); !removed.ok())
        parts_.store_watch->Fail(removed);
    }
    parts_.jobs->Forget(uid);
  }
}

void JobSupervisor::CheckStorePlace() {
  if (!parts_.store_watch->CheckPlace()) return;
  const absl::Status& place = parts_.store_watch->place();
  if (place.ok()) {
    const char* again = "the coordinator's state folder is back in its place";
    parts_.logger->Info(absl::StrCat(again, ": new jobs are accepted"));
    for (Job* job : parts_.jobs->Running()) job->Tell(again);
    StartNext();
  } else {
    parts_.logger->Error(absl::StrCat("no new job is accepted: ", place.message()));
    for (Job* job : parts_.jobs->Running()) job->Warn(std::string(place.message()));
  }
}

}  // namespace evergrad::coordinator
