// The files of a run, brought to this machine over the control calls: in parts with checksums, each
// file whole or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"

namespace evergrad::psctl {

// Whether this machine sees the coordinator's own runs folder of that job: the folder's mark is
// there, and of a job that has ended its result.json with the same contents. A coordinator that
// says no mark is believed.
bool SeesRun(const v1::JobStatus& job);

struct FetchOptions {
  std::string job;     // uid or name
  std::string folder;  // made when it is not there
  std::chrono::milliseconds retry_for{
      60000};  // a coordinator that does not answer, or has too many such calls, is asked again
};
struct Fetched {
  std::string host;                // where the files come from
  std::string there;               // their folder on that host
  std::string state;               // of the job
  std::vector<std::string> files;  // names, in the folder
  std::uint64_t bytes =
      0;  // that came now; a file that was here already, with the same digest, does not come again
};
// Unavailable: the coordinator stays away. DataLoss: a file differs from its digest however often
// it is read. FailedPrecondition: the run has no files yet. Cancelled: a signal came. Errors of
// this machine name the path.
absl::StatusOr<Fetched> FetchRun(Context& context, ControlClient& client,
                                 const FetchOptions& options);

int FetchJob(Context& context, const std::vector<std::string>& args);  // the verb

}  // namespace evergrad::psctl
