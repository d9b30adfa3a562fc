#include <algorithm>

#include "common/base/status.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

// Answers at once if the job's revision is above the one seen, or it has ended; else when it rises,
// at the latest after wait_ms.
template <>
void ControlPlane::Serve(const v1::GetJobRequest& request, Responder responder) {
  const Job* job = jobs_.Find(request.job());
  if (job == nullptr) return responder->Answer(NoSuchJob(request.job()));
  if (request.wait_ms() == 0 || job->revision() > request.seen_revision() || job->ended())
    return AnswerJob(*job, request.events_after(), responder);
  const auto wait = std::min<std::chrono::milliseconds>(
      std::chrono::milliseconds(request.wait_ms()), options_.wait_max);
  waiters_.push_back({job->uid(), request.seen_revision(), request.events_after(), Now() + wait,
                      std::move(responder)});
}

void ControlPlane::AnswerJob(const Job& job, std::uint64_t events_after,
                             const Responder& responder) {
  v1::GetJobResponse response;
  FillStatus(job, response.mutable_job(), events_after);
  AnswerWith(*responder, response);
}

void ControlPlane::CheckJobWaiters() {
  const MonoTime now = Now();
  std::erase_if(waiters_, [&](const JobWaiter& waiter) {
    const Job* const job = jobs_.Get(waiter.job);
    if (job == nullptr) {
      waiter.responder->Answer(absl::NotFoundError("the job has been forgotten"));
      return true;
    }
    if (job->revision() <= waiter.seen_revision && !job->ended() && now < waiter.deadline)
      return false;
    AnswerJob(*job, waiter.events_after, waiter.responder);
    return true;
  });
}

}  // namespace evergrad::coordinator
