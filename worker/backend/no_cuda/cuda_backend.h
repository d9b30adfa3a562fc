// What stands in for cuda/ where it was not built: the same function, answering that it is absent.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// True where a CUDA backend was built and a device answers: what "auto" asks.
bool CudaIsAvailable();
// Unimplemented: this build has no CUDA backend.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int threads);

}  // namespace evergrad::worker
