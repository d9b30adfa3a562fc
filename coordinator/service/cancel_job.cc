#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {

// Begins to cancel a job. A repeated call, or a call for an ended job, changes nothing and returns
// the state. Callers poll GetJob for CANCELLED.
void JobCalls::Serve(const v1::CancelJobRequest& request, const Caller& caller,
                     const Responder& responder) {
  // An empty name selects the newest job only in calls that read; a cancel must name its job.
  if (request.job().empty())
    return responder->Answer(
        UserError(absl::InvalidArgumentError("CancelJob names no job: want=name or uid")));
  Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  if (absl::Status allowed = CheckOwner(caller, *job); !allowed.ok())
    return responder->Answer(std::move(allowed));
  if (!parts_.store_watch->status().ok() && !job->ended())
    return responder->Answer(parts_.store_watch->Refusal("the job was not cancelled"));
  if (!parts_.life->term_known) {
    // The call waits until the start-up window has closed, because only then are the tasks of the
    // job known. It waits with the uid, because the name may then stand for another job.
    v1::CancelJobRequest pinned = request;
    pinned.set_job(JobUidString(job->uid()));
    early_.push_back(
        {responder, [this, pinned, caller, responder] { Serve(pinned, caller, responder); }});
    return;
  }
  parts_.jobs->RemoveFromQueue(job->uid());
  job->Cancel();
  v1::CancelJobResponse response;
  response.set_state(std::string(JobStateName(job->state())));
  parts_.gate->WhenDurable(
      [responder, response = std::move(response)] { AnswerWith(*responder, response); });
}

}  // namespace evergrad::coordinator
