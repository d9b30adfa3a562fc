// The calls of the service Control of one coordinator. All except GetJobAsync block. Only one
// thread uses a client.
//
// A blocking call that could not be sent is repeated for at most Connection::wait. A call cannot be
// sent if no process listens at the address, or if the connection breaks first. A call that was
// sent is not repeated, because the coordinator may have received it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/client/control.h"
#include "coordinator/psctl/context.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::psctl {

class ControlClient {
 public:
  // Begins to connect. If the coordinator is unreachable, the first call returns Unavailable with
  // the address and the cause. `context` outlives the client.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(Context& context,
                                                                const Connection& connection);
  ~ControlClient();

  // Calls the method of the service Control that takes a `Request`, for example
  // Call<v1::ListTasksResponse>(v1::ListTasksRequest()). `longer` is added to Connection::timeout.
  template <class Response, class Request>
  absl::StatusOr<Response> Call(const Request& request, std::chrono::milliseconds longer = {}) {
    return Parse<Response>(address_, Exchange(client::ControlMethod<Request, Response>(),
                                              request.SerializeAsString(), longer));
  }
  // `done` runs once, on a transport thread. The destructor of the client waits until `done` has
  // run.
  void GetJobAsync(const v1::GetJobRequest& request,
                   std::function<void(absl::StatusOr<v1::GetJobResponse>)> done);

  const std::string& address() const { return address_; }

 private:
  ControlClient(Context& context, const Connection& connection, std::string address,
                std::unique_ptr<transport::Channel> channel);
  absl::StatusOr<std::string> Exchange(const std::string& method, const std::string& request,
                                       std::chrono::milliseconds longer);
  // Returns the error of a call, with the address that was called.
  static absl::Status Explained(const std::string& address, const absl::Status& status);
  template <class Response>
  static absl::StatusOr<Response> Parse(const std::string& address,
                                        const absl::StatusOr<std::string>& bytes) {
    absl::StatusOr<Response> response = client::ParseAnswer<Response>(bytes);
    if (!response.ok()) return Explained(address, response.status());
    return response;
  }

  Context& context_;
  const std::string address_;
  const std::chrono::milliseconds timeout_, wait_;
  std::unique_ptr<transport::Channel> channel_;
};

}  // namespace evergrad::psctl
