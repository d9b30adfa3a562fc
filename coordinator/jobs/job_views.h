// Views of a job: its status, and the facts of which the files of its run are made.
#pragma once

#include <cstdint>
#include <optional>

#include "coordinator/jobs/run_result.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::coordinator {

struct JobParts;

// With the events whose number is above `events_after`.
void FillJobStatus(const JobParts& parts, std::uint64_t events_after, v1::JobStatus* status);
RunFacts FactsOf(const JobParts& parts);  // Of this moment.
// The age of the newest checkpoint, or of the job if it has none; nullopt: it makes none.
std::optional<double> CheckpointAgeSeconds(const JobParts& parts);

}  // namespace evergrad::coordinator
