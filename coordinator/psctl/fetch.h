// Copies the files of a run to this machine through control calls, in chunks with checksums. Each
// file is written completely or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/psctl/context.h"
#include "coordinator/psctl/control_client.h"

namespace evergrad::psctl {

// Returns whether this machine sees the coordinator's runs folder of the job. The folder must have
// the job's mark and, if the job has ended, a result.json with the same contents. If the
// coordinator reports no mark, returns true.
bool SeesRun(const v1::JobStatus& job);

struct FetchOptions {
  std::string job;     // uid or name
  std::string folder;  // created if it does not exist
  // Time for which calls are repeated while the coordinator does not answer, or refuses the calls
  // because too many calls are in progress.
  std::chrono::milliseconds retry_for{60000};
};
struct Fetched {
  std::string host;                // host of the coordinator's files
  std::string there;               // folder of the files on that host
  std::string state;               // state of the job
  std::vector<std::string> files;  // names of the files in the folder
  // Transferred bytes; a local file with the same digest is not transferred.
  std::uint64_t bytes = 0;
};
// Copies the files. Returns Unavailable if the coordinator stays unreachable, DataLoss if a file
// differs from its digest after all retries, FailedPrecondition if the run has no files yet, and
// Cancelled on a signal. Errors of this machine's file system name the path.
absl::StatusOr<Fetched> FetchRun(Context& context, ControlClient& client,
                                 const FetchOptions& options);

int FetchJob(Context& context, const std::vector<std::string>& args);  // the verb

}  // namespace evergrad::psctl
