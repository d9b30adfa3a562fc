#include "coordinator/service/control_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/client/control.h"
#include "common/transport/certificate_task.h"
#include "coordinator/service/closure_calls.h"
#include "coordinator/service/job_calls.h"
#include "coordinator/service/run_file_calls.h"
#include "coordinator/service/task_calls.h"

namespace evergrad::coordinator {
namespace {

using Roles = std::vector<absl::string_view>;

template <auto Handlers, class Request>
class ParsedRequest final : public ParsedCall {
 public:
  bool Parse(const std::string& bytes) { return request_.ParseFromString(bytes); }
  std::string NamedJob() const override {
    if constexpr (requires(const Request& request) { request.job(); }) return request_.job();
    return "";
  }
  std::string NamedTask() const override {
    if constexpr (requires(const Request& request) { request.task(); }) return request_.task();
    return "";
  }
  std::string Detail() const override {
    if constexpr (requires(const Request& request) { request.on(); })
      return request_.on() ? "on=true" : "on=false";
    if constexpr (requires(const Request& request) { request.files(); })
      return request_.files() ? "files=true" : "files=false";
    return "";
  }
  void Serve(const CallHandlers& handlers, const Caller& caller,
             const Responder& responder) const override {
    auto& handler = *(handlers.*Handlers);
    if constexpr (requires { handler.Serve(request_, caller, responder); })
      handler.Serve(request_, caller, responder);
    else
      handler.Serve(request_, responder);
  }

 private:
  Request request_;
};

// Flags of a row.
constexpr unsigned kOwnerOnly = 1, kAudited = 2;

template <auto Handlers, class Request>
ControlCall Row(Roles roles, unsigned flags = 0,
                std::string (*made)(const std::string& answer) = nullptr) {
  return {client::ControlMethod<Request>(),
          std::move(roles),
          (flags & kOwnerOnly) != 0,
          (flags & kAudited) != 0,
          [](const std::string& bytes) -> std::unique_ptr<ParsedCall> {
            auto parsed = std::make_unique<ParsedRequest<Handlers, Request>>();
            if (!parsed->Parse(bytes)) return nullptr;
            return parsed;
          },
          made};
}

std::string SubmittedJob(const std::string& answer) {
  v1::SubmitJobResponse response;
  if (!response.ParseFromString(answer)) return "";
  return absl::StrCat(response.name(), "/", JobUidString(JobUid(response.job_uid())));
}

constexpr auto kJobs = &CallHandlers::jobs;
constexpr auto kClosures = &CallHandlers::closures;
constexpr auto kTasks = &CallHandlers::tasks;
constexpr auto kRunFiles = &CallHandlers::run_files;

// Tasks use their sessions (task_messages.h) for everything, so only people and their programs call
// these RPCs.
std::vector<ControlCall> MakeCalls() {
  const Roles readers{"user", "viewer", "operator", "admin"};
  const Roles submitters{"user", "operator", "admin"};
  const Roles users{"user", "admin"};
  const Roles admins{"admin"};
  return {
      Row<kJobs, v1::SubmitJobRequest>(submitters, kAudited, SubmittedJob),
      Row<kJobs, v1::GetJobRequest>(readers),
      Row<kJobs, v1::ListJobsRequest>(readers),
      Row<kJobs, v1::CancelJobRequest>(submitters, kOwnerOnly | kAudited),
      Row<kJobs, v1::DeleteJobRequest>(submitters, kOwnerOnly | kAudited),
      Row<kTasks, v1::ListTasksRequest>(readers),
      Row<kJobs, v1::ListVariablesRequest>(readers),
      Row<kTasks, v1::ReadTaskLogsRequest>(readers),
      Row<kTasks, v1::GetClusterInfoRequest>(readers),
      Row<kTasks, v1::DrainTaskRequest>(admins, kAudited),
      Row<kTasks, v1::CordonTaskRequest>(admins, kAudited),
      Row<kRunFiles, v1::ListRunFilesRequest>(readers),
      Row<kRunFiles, v1::ReadRunFileRequest>(readers),
      Row<kClosures, v1::ScheduleClosureRequest>(users, kOwnerOnly),
      Row<kClosures, v1::JoinClosuresRequest>(users, kOwnerOnly),
      Row<kClosures, v1::ClosuresDoneRequest>(users, kOwnerOnly),
      Row<kClosures, v1::FetchResultRequest>(users, kOwnerOnly),
      Row<kClosures, v1::CancelClosuresRequest>(users, kOwnerOnly | kAudited),
      Row<kClosures, v1::ReleaseResultsRequest>(users, kOwnerOnly),
      Row<kClosures, v1::FinishJobRequest>(users, kOwnerOnly | kAudited),
  };
}

}  // namespace

const std::vector<ControlCall>& ControlCalls() {
  static const auto* const calls = new std::vector<ControlCall>(MakeCalls());
  return *calls;
}

absl::string_view ControlCall::name() const {
  const absl::string_view path = method;
  return path.substr(path.rfind('/') + 1);
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
  if (call.roles.empty()) return absl::PermissionDeniedError("no role may call this method");
  if (peer.certificate_task.empty()) return absl::OkStatus();
  const absl::string_view role = transport::RoleOfTask(peer.certificate_task);
  if (std::find(call.roles.begin(), call.roles.end(), role) != call.roles.end())
    return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("certificate is for ", peer.certificate_task,
                                                  ", expected ",
                                                  absl::StrJoin(call.roles, " or ")));
}

}  // namespace evergrad::coordinator
