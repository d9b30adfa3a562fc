// Which RPC a call is. Bytes that are no request of the method are refused and change nothing.
#include "absl/strings/str_cat.h"
#include "common/client/protocol.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

void ControlPlane::OnUnary(const std::string& method, const std::string& bytes,
                           Responder responder) {
  if (stopped_) return responder->Answer(absl::UnavailableError("the coordinator is stopping"));
  const auto call = [&](auto request, auto handler) {
    if (!request.ParseFromString(bytes)) {
      malformed_total_.Add();
      return responder->Answer(absl::InvalidArgumentError(
          absl::StrCat("malformed request: method=", method, " bytes=", bytes.size())));
    }
    (this->*handler)(request, responder);
  };
  if (method == client::kSubmitJob) return call(v1::SubmitJobRequest(), &ControlPlane::SubmitJob);
  if (method == client::kGetJob) return call(v1::GetJobRequest(), &ControlPlane::GetJob);
  if (method == client::kListJobs) return call(v1::ListJobsRequest(), &ControlPlane::ListJobs);
  if (method == client::kCancelJob) return call(v1::CancelJobRequest(), &ControlPlane::CancelJob);
  if (method == client::kListTasks) return call(v1::ListTasksRequest(), &ControlPlane::ListTasks);
  if (method == client::kListVariables)
    return call(v1::ListVariablesRequest(), &ControlPlane::ListVariables);
  if (method == client::kReadTaskLogs)
    return call(v1::ReadTaskLogsRequest(), &ControlPlane::ReadTaskLogs);
  if (method == client::kGetClusterInfo)
    return call(v1::GetClusterInfoRequest(), &ControlPlane::GetClusterInfo);
  if (method == client::kDrainTask) return call(v1::DrainTaskRequest(), &ControlPlane::DrainTask);
  if (method == client::kListRunFiles)
    return call(v1::ListRunFilesRequest(), &ControlPlane::ListRunFiles);
  if (method == client::kReadRunFile)
    return call(v1::ReadRunFileRequest(), &ControlPlane::ReadRunFile);
  if (OnClosureCall(method, bytes, responder)) return;
  responder->Answer(
      absl::UnimplementedError(absl::StrCat("unknown method: ", method.substr(0, 200))));
}

}  // namespace evergrad::coordinator
