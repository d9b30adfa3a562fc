// The kind of counting jobs (counting.h). The main program registers it with the runner if the
// daemon was started with --failpoints.
#pragma once

#include "worker/runner/job_kind.h"

namespace evergrad::worker {

// Its evaluations add the counts of their examples. Lives as long as the process.
const JobKind& CountingJobs();

}  // namespace evergrad::worker
