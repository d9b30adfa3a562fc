// Calls of the service Control (api.proto). A method is found by its request message, so the proto
// file is the only list of the methods' names and paths.
//
// Stateless. ControlMethod and ParseAnswer may be called from any thread; CallControl blocks.
#pragma once

#include <chrono>
#include <string>

#include <google/protobuf/descriptor.h>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"

namespace evergrad::client {

// Returns the descriptor of the service Control in api.proto.
const google::protobuf::ServiceDescriptor& ControlService();

// Returns the path of the method whose request is `request`: "/evergrad.v1.Control/DrainTask". The
// service must have a method with this request. If `response` is given, it must be the type of the
// method's answer (EG_CHECK).
std::string ControlPath(const google::protobuf::Descriptor& request,
                        const google::protobuf::Descriptor* response = nullptr);

// Like ControlPath, but for a message type: ControlMethod<v1::DrainTaskRequest>(). The path is
// computed once per type.
template <class Request>
const std::string& ControlMethod() {
  static const std::string path = ControlPath(*Request::descriptor());
  return path;
}
template <class Request, class Response>
const std::string& ControlMethod() {
  static const std::string path = ControlPath(*Request::descriptor(), Response::descriptor());
  return path;
}

absl::Status UnreadableAnswer(std::size_t bytes);

// Parses the answer. Returns the error of the call, or Internal if the bytes are not a Response.
template <class Response>
absl::StatusOr<Response> ParseAnswer(const absl::StatusOr<std::string>& bytes) {
  if (!bytes.ok()) return bytes.status();
  Response response;
  if (!response.ParseFromString(*bytes)) return UnreadableAnswer(bytes->size());
  return response;
}

// Makes one call, without retries. The function blocks until the answer arrives or `deadline`
// passes, so no transport thread may call it.
template <class Response, class Request>
absl::StatusOr<Response> CallControl(transport::Channel& channel, const Request& request,
                                     std::chrono::milliseconds deadline) {
  return ParseAnswer<Response>(transport::UnaryAndWait(channel, ControlMethod<Request, Response>(),
                                                       request.SerializeAsString(), deadline));
}

}  // namespace evergrad::client
