// Attempts of a counting job (counting.h), the only code of the runner that knows of such jobs.
#pragma once

#include "worker/runner/update_run.h"

namespace evergrad::worker {

// A training or an evaluation closure. An evaluation sums up the counts of its examples.
std::shared_ptr<AttemptRun> MakeCountingRun(const AttemptRun::Environment& environment,
                                            const Work& work, const UpdateRun::Measures& measures);

}  // namespace evergrad::worker
