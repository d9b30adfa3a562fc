#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

// Lists jobs in order of submission. Events and results are left out, because GetJob returns them.
template <>
void ControlPlane::Serve(const v1::ListJobsRequest&, Responder responder) {
  v1::ListJobsResponse response;
  for (const JobUid uid : jobs_.by_submission()) {
    v1::JobStatus* status = response.add_jobs();
    FillStatus(*jobs_.Get(uid), status, ~0ull);
    status->clear_result_json();
    status->clear_epoch_rows();
    status->clear_workers();
  }
  AnswerWith(*responder, response);
}

}  // namespace evergrad::coordinator
