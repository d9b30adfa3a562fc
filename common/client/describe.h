// What a plan says of a variable (v1::VariableSpec), filled from what a job file says of it: by a worker that describes a model, and by
// the coordinator where the job file names the variables itself.
#pragma once

#include <cstdint>
#include <string>

#include "common/config/job_spec.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

// Fans are Keras' compute_fans.
void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in, std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to);
void FillOptimizer(const config::OptimizerSpec& from, v1::Optimizer* to);

}  // namespace evergrad::client
