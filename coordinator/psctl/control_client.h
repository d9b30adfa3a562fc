// The control calls of a coordinator, typed. Blocking but for GetJobAsync; one thread.
//
// A blocking call that never left, because nobody listened or the connection broke before it was
// made, is repeated for Connection::wait. No other call is: what the coordinator may have received
// is never sent twice.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/psctl/context.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

class ControlClient {
 public:
  // Dials; an unreachable coordinator shows at the first call: Unavailable, naming the address and
  // the cause. `context` outlives the client.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(Context& context,
                                                                const Connection& connection);
  ~ControlClient();

  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request);
  absl::StatusOr<v1::GetJobResponse> GetJob(const v1::GetJobRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  absl::StatusOr<v1::CancelJobResponse> CancelJob(const std::string& job);
  absl::StatusOr<v1::ListTasksResponse> ListTasks();
  absl::StatusOr<v1::ListVariablesResponse> ListVariables(const std::string& job) {
    return ListVariables(job, "", /*digests=*/true);
  }
  absl::StatusOr<v1::ListVariablesResponse> ListVariables(const std::string& job,
                                                          const std::string& variable,
                                                          bool digests);
  absl::StatusOr<v1::ReadTaskLogsResponse> ReadTaskLogs(const v1::ReadTaskLogsRequest& request);
  absl::StatusOr<v1::GetClusterInfoResponse> GetClusterInfo();
  absl::StatusOr<v1::DrainTaskResponse> DrainTask(const std::string& task);
  absl::StatusOr<v1::ListRunFilesResponse> ListRunFiles(
      const std::string& job);  // may take as long as the coordinator reads its files
  absl::StatusOr<v1::ReadRunFileResponse> ReadRunFile(const v1::ReadRunFileRequest& request);
  // `done` runs once, on a transport thread. The client may be destroyed before: then it has run
  // when the destructor returns.
  void GetJobAsync(const v1::GetJobRequest& request,
                   std::function<void(absl::StatusOr<v1::GetJobResponse>)> done);

  const std::string& address() const { return address_; }

 private:
  ControlClient(Context& context, const Connection& connection, std::string address,
                std::unique_ptr<transport::Channel> channel);
  template <class Response, class Request>
  absl::StatusOr<Response> Call(const char* method, const Request& request,
                                std::chrono::milliseconds longer = {});

  Context& context_;
  const std::string address_;
  const std::chrono::milliseconds timeout_, wait_;
  std::unique_ptr<transport::Channel> channel_;
};

}  // namespace evergrad::psctl
