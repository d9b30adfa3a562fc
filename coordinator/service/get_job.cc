#include <algorithm>

#include "common/base/status.h"
#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {

// Answers at once if the revision of the job is above the caller's, or if the job has ended.
// Otherwise answers when the revision rises, at the latest after wait_ms.
void JobCalls::Serve(const v1::GetJobRequest& request, const Responder& responder) {
  const Job* job = parts_.jobs->Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(*parts_.life, request.job()));
  if (request.wait_ms() == 0 || job->revision() > request.seen_revision() || job->ended())
    return responder->Answer(JobAnswer(*job, request.events_after()));
  const auto wait = std::min<std::chrono::milliseconds>(
      std::chrono::milliseconds(request.wait_ms()), parts_.options->wait_max);
  // The pointer is shared because an attempt must be copyable; the attempt holds the only
  // reference.
  const auto call = std::make_shared<OpenCall>(responder);
  waiting_.Add(parts_.clock->Now() + wait,
               [this, call, uid = job->uid(), seen = request.seen_revision(),
                events_after = request.events_after()](bool late) {
                 const Job* const waited_for = parts_.jobs->Get(uid);
                 if (waited_for == nullptr) {
                   call->Answer(absl::NotFoundError("the job has been forgotten"));
                   return true;
                 }
                 if (waited_for->revision() <= seen && !waited_for->ended() && !late) return false;
                 call->Answer(JobAnswer(*waited_for, events_after));
                 return true;
               });
}

std::string JobCalls::JobAnswer(const Job& job, std::uint64_t events_after) const {
  v1::GetJobResponse response;
  FillStatus(job, response.mutable_job(), events_after);
  return response.SerializeAsString();
}

}  // namespace evergrad::coordinator
