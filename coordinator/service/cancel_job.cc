#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

// Begins the end of a job. A repeat, or a cancel of an ended job, changes nothing and returns the
// state. Callers poll GetJob until the state is CANCELLED.
template <>
void ControlPlane::Serve(const v1::CancelJobRequest& request, Responder responder) {
  // An empty name selects the newest job only in calls that read; a cancel must name its job.
  if (request.job().empty())
    return responder->Answer(
        UserError(absl::InvalidArgumentError("CancelJob names no job: want=name or uid")));
  Job* job = jobs_.Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(request.job()));
  if (!store_.status().ok() && !job->ended())
    return responder->Answer(store_.Refusal("the job was not cancelled"));
  if (!term_known_) {
    // No task has registered with this life yet. The tasks of the job are known once its window has
    // closed.
    early_calls_.push_back({responder, [this, request, responder] { Serve(request, responder); }});
    return;
  }
  jobs_.RemoveFromQueue(job->uid());
  job->Cancel();
  v1::CancelJobResponse response;
  response.set_state(std::string(JobStateName(job->state())));
  WhenDurable([responder, response = std::move(response)] { AnswerWith(*responder, response); });
}

}  // namespace evergrad::coordinator
