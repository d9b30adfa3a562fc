#include "coordinator/service/job_calls.h"

namespace evergrad::coordinator {

// Lists the jobs in order of submission, without events and results, which only GetJob returns.
void JobCalls::Serve(const v1::ListJobsRequest&, const Responder& responder) {
  v1::ListJobsResponse response;
  for (const JobUid uid : parts_.jobs->by_submission()) {
    v1::JobStatus* status = response.add_jobs();
    FillStatus(*parts_.jobs->Get(uid), status, ~0ull);
    status->clear_result_json();
    status->clear_epoch_rows();
    status->clear_workers();
  }
  AnswerWith(*responder, response);
}

}  // namespace evergrad::coordinator
