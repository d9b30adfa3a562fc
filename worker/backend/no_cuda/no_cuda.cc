#include "common/base/status.h"
#include "worker/backend/no_cuda/cuda_backend.h"

namespace evergrad::worker {

bool CudaIsAvailable() { return false; }

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int) {
  return UserError(absl::UnimplementedError("this build has no CUDA backend; use `cpu` or `auto`: type=cuda"));
}

}  // namespace evergrad::worker
