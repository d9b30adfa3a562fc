// The default backend: oneDNN for convolutions and matrix products, our own loops and Eigen for the
// rest.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// In a main(), before the first backend: KeepIsaLimit(std::getenv("ONEDNN_MAX_CPU_ISA")). Without
// it the highest that backends can use is set.
void KeepIsaLimit(const char* limit);

// `bind`: see BackendOptions. InvalidArgument: threads < 1 or above 1024. Unavailable: oneDNN could
// not make an engine.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(int threads, bool bind);

}  // namespace evergrad::worker
