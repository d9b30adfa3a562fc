// The caller of a Control RPC, and the rule about jobs of other users. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/transport/transport.h"

namespace evergrad::coordinator {

class Job;

struct Caller {
  std::string task;     // the task that the certificate names: "user/alice"; "" without TLS
  std::string address;  // in the transport's notation
};
Caller CallerOf(const transport::PeerInfo& peer);

// Returns "mnist/0123456789abcdef", the name and uid of a job.
std::string JobText(const Job& job);

// Checks whether the caller may change the job. The owner of the job and every admin may change it.
// Everybody may change a job that has no owner, because it was submitted without TLS. Without TLS
// callers have no identity, and everybody may change every job. Otherwise the error is
// PermissionDenied, an error of the user.
absl::Status CheckOwner(const Caller& caller, const Job& job);

}  // namespace evergrad::coordinator
