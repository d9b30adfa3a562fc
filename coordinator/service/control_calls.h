// One row of the table of Control RPCs: the method, the roles that may call it, and its handler.
//
// To add an RPC, declare it in api.proto, write `Serve` for its request in a separate file, as a
// member of the class of CallHandlers that has the needed tables, and add the row to
// control_calls.cc. Clients call it by client::CallControl or, in psctl, by ControlClient::Call.
//
// Rows are constant; FindCall and CheckCaller may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/transport/transport.h"

namespace evergrad::coordinator {

class ClosureCalls;
class JobCalls;
class RunFileCalls;
class TaskCalls;

// The classes that serve the RPCs, one for each subject.
struct CallHandlers {
  JobCalls* jobs = nullptr;
  ClosureCalls* closures = nullptr;  // serves the RPCs of functions jobs
  TaskCalls* tasks = nullptr;
  RunFileCalls* run_files = nullptr;
};

// The responder of a call, which answers once. The handler shares the responder with the callbacks
// that answer later.
using Responder = std::shared_ptr<transport::UnaryResponder>;

struct ControlCall {
  std::string method;                    // "/evergrad.v1.Control/DrainTask"
  std::vector<absl::string_view> roles;  // roles of certificates: "user", "worker", …
  // Parses and serves the request on the control executor. Returns false, without any change, if
  // the bytes are not a request of the method.
  bool (*serve)(const CallHandlers& handlers, const std::string& request,
                const Responder& responder);
};

// Answers with a serialized message.
void AnswerWith(transport::UnaryResponder& responder, const google::protobuf::MessageLite& message);

// The table of the Control RPCs, in the order of api.proto.
const std::vector<ControlCall>& ControlCalls();

// Returns null if the method has no row. No caller may use such a method.
const ControlCall* FindCall(const std::vector<ControlCall>& calls, absl::string_view method);

// Returns OK without TLS, where no peer has a proven role. With TLS it returns PermissionDenied
// unless the certificate is for one of the roles: "certificate is for worker/0, expected user".
absl::Status CheckCaller(const ControlCall& call, const transport::PeerInfo& peer);

}  // namespace evergrad::coordinator
