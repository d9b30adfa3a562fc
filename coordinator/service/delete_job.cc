#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {

// Forgets a job that has ended. With `files`, the runs folder is removed first, on the file thread;
// if the removal fails, the job stays known.
void JobCalls::Serve(const v1::DeleteJobRequest& request, const Caller& caller,
                     const Responder& responder) {
  // An empty name selects the newest job only in calls that read.
  if (request.job().empty())
    return responder->Answer(
        UserError(absl::InvalidArgumentError("DeleteJob names no job: want=name or uid")));
  const Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  if (absl::Status allowed = CheckOwner(caller, *job); !allowed.ok())
    return responder->Answer(std::move(allowed));
  if (!job->ended()) {
    return responder->Answer(UserError(absl::FailedPreconditionError(absl::StrCat(
        "the job has not ended (psctl job cancel ends it): name=", job->name(),
        " job_uid=", JobUidString(job->uid()), " state=", JobStateName(job->state())))));
  }
  if (!parts_.store_watch->status().ok())
    return responder->Answer(parts_.store_watch->Refusal("the job was not deleted"));
  v1::DeleteJobResponse response;
  response.set_job_uid(job->uid().value());
  response.set_name(job->name());
  response.set_runs_folder(job->runs_folder());
  if (!request.files()) return Forget(job->uid(), response, responder);
  parts_.files->Run([this, responder, response]() -> std::function<void()> {
    std::error_code error;
    std::filesystem::remove_all(response.runs_folder(), error);
    return [this, responder, response, error] {
      if (parts_.life->stopped) return;
      if (!error) return Forget(JobUid(response.job_uid()), response, responder);
      responder->Answer(absl::UnavailableError(
          absl::StrCat("cannot remove the runs folder: path=", response.runs_folder(),
                       " error=", error.message())));
    };
  });
}

void JobCalls::Forget(JobUid uid, const v1::DeleteJobResponse& response,
                      const Responder& responder) {
  // Another call may have deleted the job while its files were removed.
  if (parts_.jobs->Get(uid) != nullptr) {
    if (parts_.store->persistent()) {
      if (const absl::Status removed = parts_.store->Remove(uid); !removed.ok()) {
        parts_.store_watch->Fail(removed);
        return responder->Answer(parts_.store_watch->Refusal("the job was not deleted"));
      }
    }
    parts_.jobs->Forget(uid);
  }
  parts_.gate->WhenDurable([responder, response] { AnswerWith(*responder, response); });
}

}  // namespace evergrad::coordinator
