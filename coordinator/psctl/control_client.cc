#include "coordinator/psctl/control_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/client/protocol.h"
#include "common/runtime/executor.h"
#include "common/transport/not_connected.h"
#include "coordinator/psctl/text_table.h"

namespace evergrad::psctl {
namespace {

constexpr auto kPause = std::chrono::milliseconds(50);  // between two tries to reach a coordinator
constexpr auto kSilence = std::chrono::milliseconds(1000);  // a shorter wait is not worth a word

template <class Response>
absl::StatusOr<Response> Parse(const std::string& address, absl::StatusOr<std::string> bytes) {
  if (!bytes.ok()) {
    if (bytes.status().code() != absl::StatusCode::kUnavailable &&
        bytes.status().code() != absl::StatusCode::kDeadlineExceeded)
      return bytes.status();
    if (!OriginOf(bytes.status()).empty())
      return bytes.status();  // its answer: it is there, and takes nothing now
    if (!transport::IsNotConnected(bytes.status()) && absl::IsDeadlineExceeded(bytes.status())) {
      return absl::Status(
          bytes.status().code(),
          absl::StrCat("no answer from the coordinator in time (does it run, is this its "
                       "address?); it may have "
                       "done what it was asked, psctl job list says which jobs there are: address=",
                       address, " cause=", bytes.status().message()));
    }
    return absl::Status(
        bytes.status().code(),
        absl::StrCat("coordinator not reachable (does it run, is this its address?): address=",
                     address, " cause=", bytes.status().message()));
  }
  Response response;
  if (!response.ParseFromString(*bytes))
    return absl::InternalError(absl::StrCat(
        "the coordinator's answer cannot be read: address=", address, " bytes=", bytes->size()));
  return response;
}

}  // namespace

ControlClient::ControlClient(Context& context, const Connection& connection, std::string address,
                             std::unique_ptr<transport::Channel> channel)
    : context_(context),
      address_(std::move(address)),
      timeout_(connection.timeout),
      wait_(connection.wait),
      channel_(std::move(channel)) {}
ControlClient::~ControlClient() = default;

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(
    Context& context, const Connection& connection) {
  EG_ASSIGN_OR_RETURN(std::string address, CoordinatorAddress(context, connection));
  transport::ChannelOptions options;
  options.tls = connection.tls;
  options.peer_task = "coordinator";
  options.check_host = true;
  options.message_bytes_max = 64ull << 20;  // a job with many variables and shards
  EG_ASSIGN_OR_RETURN(auto channel, context.transport->Dial({address, ""}, options));
  return std::unique_ptr<ControlClient>(
      new ControlClient(context, connection, std::move(address), std::move(channel)));
}

template <class Response, class Request>
absl::StatusOr<Response> ControlClient::Call(const char* method, const Request& request,
                                             std::chrono::milliseconds longer) {
  const std::string bytes = request.SerializeAsString();
  absl::StatusOr<std::string> answer =
      transport::UnaryAndWait(*channel_, method, bytes, timeout_ + longer);
  if (answer.ok() || !transport::IsNotConnected(answer.status()))
    return Parse<Response>(address_, std::move(answer));
  const MonoTime begun = context_.clock->Now();
  runtime::Event never;  // what a pause waits on
  bool said = false;
  for (MonoTime waited{0};
       !answer.ok() && transport::IsNotConnected(answer.status()) && waited < wait_;
       waited = context_.clock->Now() - begun) {
    if (waited >= kSilence && !std::exchange(said, true)) {
      context_.err << "psctl: no coordinator at " << Printable(address_)
                   << " yet; trying again for " << ShowAge(wait_.count()) << " (--wait)\n"
                   << std::flush;
    }
    never.WaitFor(kPause);
    answer = transport::UnaryAndWait(*channel_, method, bytes, timeout_ + longer);
  }
  return Parse<Response>(address_, std::move(answer));
}

absl::StatusOr<v1::SubmitJobResponse> ControlClient::SubmitJob(
    const v1::SubmitJobRequest& request) {
  return Call<v1::SubmitJobResponse>(client::kSubmitJob, request);
}
absl::StatusOr<v1::GetJobResponse> ControlClient::GetJob(const v1::GetJobRequest& request) {
  return Call<v1::GetJobResponse>(client::kGetJob, request);
}
absl::StatusOr<v1::ListJobsResponse> ControlClient::ListJobs() {
  return Call<v1::ListJobsResponse>(client::kListJobs, v1::ListJobsRequest());
}
absl::StatusOr<v1::ListTasksResponse> ControlClient::ListTasks() {
  return Call<v1::ListTasksResponse>(client::kListTasks, v1::ListTasksRequest());
}
absl::StatusOr<v1::GetClusterInfoResponse> ControlClient::GetClusterInfo() {
  return Call<v1::GetClusterInfoResponse>(client::kGetClusterInfo, v1::GetClusterInfoRequest());
}
absl::StatusOr<v1::ReadTaskLogsResponse> ControlClient::ReadTaskLogs(
    const v1::ReadTaskLogsRequest& request) {
  return Call<v1::ReadTaskLogsResponse>(client::kReadTaskLogs, request);
}

absl::StatusOr<v1::CancelJobResponse> ControlClient::CancelJob(const std::string& job) {
  v1::CancelJobRequest request;
  request.set_job(job);
  return Call<v1::CancelJobResponse>(client::kCancelJob, request);
}

absl::StatusOr<v1::DrainTaskResponse> ControlClient::DrainTask(const std::string& task) {
  v1::DrainTaskRequest request;
  request.set_task(task);
  return Call<v1::DrainTaskResponse>(client::kDrainTask, request);
}

absl::StatusOr<v1::ListRunFilesResponse> ControlClient::ListRunFiles(const std::string& job) {
  v1::ListRunFilesRequest request;
  request.set_job(job);
  return Call<v1::ListRunFilesResponse>(client::kListRunFiles, request, std::chrono::minutes(10));
}
absl::StatusOr<v1::ReadRunFileResponse> ControlClient::ReadRunFile(
    const v1::ReadRunFileRequest& request) {
  return Call<v1::ReadRunFileResponse>(client::kReadRunFile, request);
}

absl::StatusOr<v1::ListVariablesResponse> ControlClient::ListVariables(const std::string& job,
                                                                       const std::string& variable,
                                                                       bool digests) {
  v1::ListVariablesRequest request;
  request.set_job(job);
  request.set_variable(variable);
  request.set_without_digests(!digests);
  return Call<v1::ListVariablesResponse>(client::kListVariables, request);
}

void ControlClient::GetJobAsync(const v1::GetJobRequest& request,
                                std::function<void(absl::StatusOr<v1::GetJobResponse>)> done) {
  channel_->Unary(client::kGetJob, request.SerializeAsString(),
                  timeout_ + std::chrono::milliseconds(request.wait_ms()),
                  [address = address_, done = std::move(done)](absl::StatusOr<std::string> bytes) {
                    done(Parse<v1::GetJobResponse>(address, std::move(bytes)));
                  });
}

}  // namespace evergrad::psctl
