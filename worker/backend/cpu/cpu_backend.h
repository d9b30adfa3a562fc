// The default backend. Convolutions and matrix products use oneDNN; everything else uses our own
// loops and Eigen.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// main() calls it before the first backend: KeepIsaLimit(std::getenv("ONEDNN_MAX_CPU_ISA")).
// Without a limit, the highest instruction set that backends support is used.
void KeepIsaLimit(const char* limit);

// `bind`: see BackendOptions. InvalidArgument for threads < 1 or above 1024. Unavailable if oneDNN
// could not create an engine.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(int threads, bool bind);

}  // namespace evergrad::worker
