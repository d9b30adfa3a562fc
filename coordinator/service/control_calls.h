// One row of the table of Control RPCs: the method, its callers, its place in the audit log, and
// its handler.
//
// To add an RPC, declare it in api.proto, write `Serve` for its request in a separate file, as a
// member of the class of CallHandlers that has the needed tables, and add the row to
// control_calls.cc. Clients call it by client::CallControl or, in psctl, by ControlClient::Call.
//
// Rows are constant; FindCall, CheckCaller and ControlCall::parse may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/transport/transport.h"
#include "coordinator/service/caller.h"

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

// A parsed request.
class ParsedCall {
 public:
  virtual ~ParsedCall() = default;
  // Return the job and the task that the request names, as the caller has written them, or "".
  virtual std::string NamedJob() const = 0;
  virtual std::string NamedTask() const = 0;
  // Returns the switch of the request for the audit log, "on=true" or "files=false", or "".
  virtual std::string Detail() const = 0;
  // Serves the request on the control executor, by `Serve(request, caller, responder)`, or by
  // `Serve(request, responder)` if the handler does not depend on the caller.
  virtual void Serve(const CallHandlers& handlers, const Caller& caller,
                     const Responder& responder) const = 0;
};

struct ControlCall {
  std::string method;                    // "/evergrad.v1.Control/DrainTask"
  std::vector<absl::string_view> roles;  // roles of certificates: "user", "admin", …
  // True if only the owner of the job that a request names, and admins, may call the method
  // (CheckOwner). The control plane checks this before it serves a request. A handler that looks up
  // the job later checks it again.
  bool owner_only = false;
  // True if the audit log has each call. False for calls that only read, and for the frequent calls
  // with which the client of a functions job schedules closures and fetches their results. Refused
  // calls are in the audit log in any case.
  bool audited = false;
  // Returns null if the bytes are not a request of the method.
  std::unique_ptr<ParsedCall> (*parse)(const std::string& request) = nullptr;
  // Returns the object that a call has made, such as "mnist/0123456789abcdef", from its answer.
  // Null for calls that make no object.
  std::string (*made)(const std::string& answer) = nullptr;

  absl::string_view name() const;  // "DrainTask"
};

// Answers with a serialized message.
void AnswerWith(transport::UnaryResponder& responder, const google::protobuf::MessageLite& message);

// The table of the Control RPCs, in the order of api.proto.
const std::vector<ControlCall>& ControlCalls();

// Returns null if the method has no row. No caller may use such a method.
const ControlCall* FindCall(const std::vector<ControlCall>& calls, absl::string_view method);

// Returns OK without TLS, where no peer has a proven role. With TLS it returns PermissionDenied
// unless the certificate is for one of the roles: "certificate is for worker/0, expected user or
// admin".
absl::Status CheckCaller(const ControlCall& call, const transport::PeerInfo& peer);

}  // namespace evergrad::coordinator
