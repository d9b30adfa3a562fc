// The description of a training job, from which the coordinator makes the plan. A pure function
// makes it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "evergrad/v1/session.pb.h"
#include "worker/data/dataset.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {

// Describes the model. `eval` may be null. A variable without a fitting optimizer is a user error.
absl::StatusOr<v1::DescribeResult> DescribeModel(const config::JobSpec& spec, std::uint64_t seed,
                                                 const Graph& graph, const Dataset& train,
                                                 const Dataset* eval);

}  // namespace evergrad::worker
