// Views of a job: its status, and the facts for the files of its run.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/jobs/run_result.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

struct JobParts;

// Fills `status`. The status contains the events with a number above `events_after`.
void FillJobStatus(const JobParts& parts, std::uint64_t events_after, v1::JobStatus* status);
RunFacts FactsOf(const JobParts& parts);  // Returns the present facts.
// Returns the age of the newest checkpoint, or of the job if it has no checkpoint yet. Returns
// nullopt if the job makes no checkpoints.
std::optional<double> CheckpointAgeSeconds(const JobParts& parts);

}  // namespace evergrad::coordinator
