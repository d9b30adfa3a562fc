#include "coordinator/service/control_calls.h"

#include "absl/strings/str_cat.h"
#include "common/client/control.h"
#include "coordinator/service/control_plane.h"

namespace evergrad::coordinator {

template <>
void ControlPlane::Serve(const v1::SubmitJobRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::GetJobRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ListJobsRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::CancelJobRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ListTasksRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ListVariablesRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ReadTaskLogsRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::GetClusterInfoRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::DrainTaskRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ListRunFilesRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ReadRunFileRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ScheduleClosureRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::JoinClosuresRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ClosuresDoneRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::FetchResultRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::CancelClosuresRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::ReleaseResultsRequest&, Responder);
template <>
void ControlPlane::Serve(const v1::FinishJobRequest&, Responder);

template <class Request>
ControlCall ControlPlane::Row(std::vector<absl::string_view> roles) {
  return {client::ControlMethod<Request>(), std::move(roles),
          [](ControlPlane& plane, const std::string& bytes, const Responder& responder) {
            Request request;
            if (!request.ParseFromString(bytes)) return false;
            plane.Serve(request, responder);
            return true;
          }};
}

// Tasks use their sessions (session.cc) for everything, so only users call these RPCs.
const std::vector<ControlCall>& ControlPlane::Calls() {
  static const auto* const calls = new std::vector<ControlCall>{
      Row<v1::SubmitJobRequest>({"user"}),      Row<v1::GetJobRequest>({"user"}),
      Row<v1::ListJobsRequest>({"user"}),       Row<v1::CancelJobRequest>({"user"}),
      Row<v1::ListTasksRequest>({"user"}),      Row<v1::ListVariablesRequest>({"user"}),
      Row<v1::ReadTaskLogsRequest>({"user"}),   Row<v1::GetClusterInfoRequest>({"user"}),
      Row<v1::DrainTaskRequest>({"user"}),      Row<v1::ListRunFilesRequest>({"user"}),
      Row<v1::ReadRunFileRequest>({"user"}),    Row<v1::ScheduleClosureRequest>({"user"}),
      Row<v1::JoinClosuresRequest>({"user"}),   Row<v1::ClosuresDoneRequest>({"user"}),
      Row<v1::FetchResultRequest>({"user"}),    Row<v1::CancelClosuresRequest>({"user"}),
      Row<v1::ReleaseResultsRequest>({"user"}), Row<v1::FinishJobRequest>({"user"}),
  };
  return *calls;
}

void ControlPlane::OnUnary(const ControlCall& call, const std::string& bytes,
                           const Responder& responder) {
  if (stopped_) return responder->Answer(absl::UnavailableError("the coordinator is stopping"));
  if (call.serve(*this, bytes, responder)) return;
  metrics_.malformed.Add();
  responder->Answer(absl::InvalidArgumentError(
      absl::StrCat("malformed request: method=", call.method, " bytes=", bytes.size())));
}

const ControlCall* FindCall(const std::vector<ControlCall>& calls, absl::string_view method) {
  for (const ControlCall& call : calls) {
    if (call.method == method) return &call;
  }
  return nullptr;
}

absl::Status CheckCaller(const ControlCall& call, const transport::PeerInfo& peer) {
  absl::Status refused = absl::PermissionDeniedError("no role may call this method");
  for (const absl::string_view role : call.roles) {
    refused = transport::CheckPeer(peer, role);
    if (refused.ok()) break;
  }
  return refused;
}

}  // namespace evergrad::coordinator
