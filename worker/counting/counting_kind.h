// The kind of counting jobs (counting.h). The main program registers it with the runner if the
// daemon was started with --failpoints.
#pragma once

#include "worker/runner/job_kind.h"

namespace evergrad::worker {

// Returns the kind of counting jobs, whose evaluations add the counts of their examples. The kind
// lives as long as the process.
const JobKind& CountingJobs();

}  // namespace evergrad::worker
