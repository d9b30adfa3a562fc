#include "coordinator/service/control_calls.h"

#include <utility>

#include "common/client/control.h"
#include "coordinator/service/closure_calls.h"
#include "coordinator/service/job_calls.h"
#include "coordinator/service/run_file_calls.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {
namespace {

template <auto Handlers, class Request>
ControlCall Row(std::vector<absl::string_view> roles) {
  return {client::ControlMethod<Request>(), std::move(roles),
          [](const CallHandlers& handlers, const std::string& bytes, const Responder& responder) {
            Request request;
            if (!request.ParseFromString(bytes)) return false;
            (handlers.*Handlers)->Serve(request, responder);
            return true;
          }};
}

constexpr auto kJobs = &CallHandlers::jobs;
constexpr auto kClosures = &CallHandlers::closures;
constexpr auto kTasks = &CallHandlers::tasks;
constexpr auto kRunFiles = &CallHandlers::run_files;

}  // namespace

// Tasks use their sessions (task_messages.h) for everything, so only users call these RPCs.
const std::vector<ControlCall>& ControlCalls() {
  static const auto* const calls = new std::vector<ControlCall>{
      Row<kJobs, v1::SubmitJobRequest>({"user"}),
      Row<kJobs, v1::GetJobRequest>({"user"}),
      Row<kJobs, v1::ListJobsRequest>({"user"}),
      Row<kJobs, v1::CancelJobRequest>({"user"}),
      Row<kJobs, v1::DeleteJobRequest>({"user"}),
      Row<kTasks, v1::ListTasksRequest>({"user"}),
      Row<kJobs, v1::ListVariablesRequest>({"user"}),
      Row<kTasks, v1::ReadTaskLogsRequest>({"user"}),
      Row<kTasks, v1::GetClusterInfoRequest>({"user"}),
      Row<kTasks, v1::DrainTaskRequest>({"user"}),
      Row<kTasks, v1::CordonTaskRequest>({"user"}),
      Row<kRunFiles, v1::ListRunFilesRequest>({"user"}),
      Row<kRunFiles, v1::ReadRunFileRequest>({"user"}),
      Row<kClosures, v1::ScheduleClosureRequest>({"user"}),
      Row<kClosures, v1::JoinClosuresRequest>({"user"}),
      Row<kClosures, v1::ClosuresDoneRequest>({"user"}),
      Row<kClosures, v1::FetchResultRequest>({"user"}),
      Row<kClosures, v1::CancelClosuresRequest>({"user"}),
      Row<kClosures, v1::ReleaseResultsRequest>({"user"}),
      Row<kClosures, v1::FinishJobRequest>({"user"}),
  };
  return *calls;
}

void AnswerWith(transport::UnaryResponder& responder,
                const google::protobuf::MessageLite& message) {
  responder.Answer(message.SerializeAsString());
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
