// The kind of counting jobs (counting.h). The main program registers this kind with the runner if
// the daemon was started with --failpoints.
#pragma once

#include "worker/runner/job_kind.h"

namespace evergrad::worker {

// Returns the kind of counting jobs. An evaluation of a counting job adds the counts of its
// examples. The object lives as long as the process.
const JobKind& CountingJobs();

}  // namespace evergrad::worker
