#include "kubernetes/controller/coordinator_calls.h"

#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/client/control.h"

namespace evergrad::kubernetes {
namespace {

class ChannelCalls final : public CoordinatorCalls {
 public:
  explicit ChannelCalls(std::unique_ptr<transport::Channel> channel)
      : channel_(std::move(channel)) {}

  absl::StatusOr<v1::ListJobsResponse> ListJobs() override {
    return Call<v1::ListJobsResponse>(v1::ListJobsRequest());
  }
  absl::StatusOr<v1::JobStatus> GetJob(std::uint64_t job_uid) override {
    v1::GetJobRequest request;
    request.set_job(JobUidString(JobUid(job_uid)));
    request.set_events_after(~0ull);
    EG_ASSIGN_OR_RETURN(v1::GetJobResponse response, Call<v1::GetJobResponse>(request));
    return std::move(*response.mutable_job());
  }
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request) override {
    return Call<v1::SubmitJobResponse>(request);
  }
  absl::Status CancelJob(std::uint64_t job_uid) override {
    v1::CancelJobRequest request;
    request.set_job(JobUidString(JobUid(job_uid)));
    return Call<v1::CancelJobResponse>(request).status();
  }

 private:
  template <class Response, class Request>
  absl::StatusOr<Response> Call(const Request& request) {
    return client::CallControl<Response>(*channel_, request, kCallMax);
  }
  const std::unique_ptr<transport::Channel> channel_;
};

}  // namespace

// Most errors of the coordinator have no origin. The codes below are those that the transport, a
// coordinator that stops, and an unreadable answer have.
bool IsAnswer(const absl::Status& error) {
  if (!OriginOf(error).empty()) return true;
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown: return false;
    default: return true;
  }
}

absl::StatusOr<std::unique_ptr<CoordinatorCalls>> MakeCoordinatorCalls(
    transport::Transport* transport, const std::string& address,
    transport::ChannelOptions options) {
  options.peer_task = "coordinator";
  options.check_host = true;
  options.message_bytes_max = 64ull << 20;  // a list of many jobs
  EG_ASSIGN_OR_RETURN(auto channel, transport->Dial({address, ""}, options));
  return std::unique_ptr<CoordinatorCalls>(std::make_unique<ChannelCalls>(std::move(channel)));
}

}  // namespace evergrad::kubernetes
