// The default backend. Convolutions and matrix products use oneDNN; everything else uses our own
// loops and Eigen.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// main() must call KeepIsaLimit(std::getenv("ONEDNN_MAX_CPU_ISA")) before it makes a backend. The
// first backend keeps a limit up to avx512_core_bf16. Otherwise it limits oneDNN to
// avx512_core_bf16, because products with AMX crash (cpu_backend.cc).
void KeepIsaLimit(const char* limit);

// BackendOptions (worker/backend/backend.h) describes `bind`. Returns InvalidArgument for threads <
// 1 or above 1024, and Unavailable if oneDNN could not create an engine.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(int threads, bool bind);

}  // namespace evergrad::worker
