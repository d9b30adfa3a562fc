// Attempts of a counting job (counting.h); the rest of the runner does not know of such jobs.
#pragma once

#include "worker/runner/update_run.h"

namespace evergrad::worker {

// Creates a training or an evaluation closure. An evaluation adds the counts of its examples.
std::shared_ptr<AttemptRun> MakeCountingRun(const AttemptRun::Environment& environment,
                                            const Work& work, const UpdateRun::Measures& measures);

}  // namespace evergrad::worker
