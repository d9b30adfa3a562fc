// Conversions between the settings of a job file and the messages that describe a variable in a
// plan (v1::VariableSpec). A worker uses the conversions for the variables of a model. The
// coordinator uses the conversions for the variables that a functions job names. A server uses the
// conversions for its shards, and for the headers of the files that it writes.
//
// Pure functions. Messages may come from outside: their numbers are copied unchecked, and the
// caller must run optimizers::Check.
#pragma once

#include <cstdint>
#include <string>

#include "common/config/job_spec.h"
#include "common/optimizers/settings.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

// Fills in `to`. `fan_in` and `fan_out` must be computed as by Keras' compute_fans.
void FillInitializer(const config::InitializerSpec& from, std::uint64_t fan_in,
                     std::uint64_t fan_out, std::uint64_t seed, v1::Initializer* to);
// Copies every member of the settings to or from the field of the same name. A new member of
// optimizers::Settings therefore needs a new field of the message, and no change here.
void FillOptimizer(const optimizers::Settings& from, v1::Optimizer* to);
optimizers::Settings OptimizerOf(const v1::Optimizer& from);

}  // namespace evergrad::client
