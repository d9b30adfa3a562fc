// The Control RPCs about jobs: SubmitJob, GetJob, ListJobs, CancelJob, DeleteJob and ListVariables,
// each in a separate file.
//
// Not thread-safe: the control executor owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/jobs/job.h"
#include "coordinator/service/control_calls.h"
#include "coordinator/service/job_supervisor.h"
#include "coordinator/service/service_parts.h"
#include "coordinator/service/waiting_calls.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

class JobCalls {
 public:
  JobCalls(ServiceParts parts, JobHost* host, JobSupervisor* supervisor)
      : parts_(parts), host_(host), supervisor_(supervisor) {}

  void Serve(const v1::SubmitJobRequest& request, const Caller& caller, const Responder& responder);
  void Serve(const v1::GetJobRequest& request, const Responder& responder);
  void Serve(const v1::ListJobsRequest& request, const Responder& responder);
  void Serve(const v1::CancelJobRequest& request, const Caller& caller, const Responder& responder);
  void Serve(const v1::DeleteJobRequest& request, const Caller& caller, const Responder& responder);
  void Serve(const v1::ListVariablesRequest& request, const Responder& responder);

  // Answers those waiting calls that can be answered after a change.
  void Check() { waiting_.Check(parts_.clock->Now()); }
  void ServeEarly();  // serves the calls that arrived before the term was known
  void Stop();        // answers all open calls with Unavailable

 private:
  const Job* FindRequest(const std::string& request_id, const Caller& caller) const;
  void Forget(JobUid uid, const v1::DeleteJobResponse& response, const Responder& responder);
  void FillStatus(const Job& job, v1::JobStatus* status, std::uint64_t events_after) const;
  std::string JobAnswer(const Job& job, std::uint64_t events_after) const;  // a GetJobResponse

  struct EarlyCall {
    Responder responder;
    std::function<void()> serve;
  };
  const ServiceParts parts_;
  JobHost* const host_;  // the host of submitted jobs
  JobSupervisor* const supervisor_;
  WaitingCalls waiting_;
  std::vector<EarlyCall> early_;
};

}  // namespace evergrad::coordinator
