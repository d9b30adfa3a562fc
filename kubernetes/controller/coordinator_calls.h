// The calls to the coordinator that the operator makes. Tests replace the interface.
//
// The calls block for at most their deadline of 10 s. Only one thread uses an object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::kubernetes {

class CoordinatorCalls {
 public:
  virtual ~CoordinatorCalls() = default;
  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs() = 0;
  // Returns the job with its epochs, and without its events.
  virtual absl::StatusOr<v1::JobStatus> GetJob(std::uint64_t job_uid) = 0;
  virtual absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request) = 0;
  virtual absl::Status CancelJob(std::uint64_t job_uid) = 0;
};

// Returns whether the error is the coordinator's answer to the call. After any other error the call
// may or may not have been carried out. Pure.
bool IsAnswer(const absl::Status& error);

// The time after which a call of a former process can no longer reach the coordinator.
inline constexpr std::chrono::seconds kCallMax(10);

// Begins to connect to `address`. Returns an error if the TLS files cannot be used.
absl::StatusOr<std::unique_ptr<CoordinatorCalls>> MakeCoordinatorCalls(
    transport::Transport* transport, const std::string& address, transport::ChannelOptions options);

}  // namespace evergrad::kubernetes
