// The seven RPCs of functions jobs: schedule, join, done, fetch, cancel, release, finish. The RPCs
// share one mechanism: the job answers at once, or it is asked again after each change, in the
// order of the calls. After at most wait_ms the answer states the reason for the wait, and the
// caller calls again. A job of another user refuses the calls (CheckOwner).
//
// Not thread-safe: the control executor owns it.
#pragma once

#include "coordinator/service/control_calls.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/waiting_calls.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class ClosureCalls {
 public:
  explicit ClosureCalls(ServiceParts parts) : parts_(parts) {}

  void Serve(const v1::ScheduleClosureRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::JoinClosuresRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::ClosuresDoneRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::FetchResultRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::CancelClosuresRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::ReleaseResultsRequest& request, const Caller& caller,
             const Responder& responder);
  void Serve(const v1::FinishJobRequest& request, const Caller& caller, const Responder& responder);

  // Asks the jobs again to answer the waiting calls.
  void Check() { waiting_.Check(parts_.clock->Now()); }
  void Stop() { waiting_.Clear(); }  // The destructor of a dropped call answers it.

 private:
  template <class Request, class Ask>
  void AskJob(const Request& request, const Caller& caller, const Responder& responder, Ask ask);

  const ServiceParts parts_;
  WaitingCalls waiting_;
};

}  // namespace evergrad::coordinator
