#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/no_cuda/cuda_backend.h"

namespace evergrad::worker {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.type == "cpu") return MakeCpuBackend(options.threads, options.bind);
  if (options.type == "cuda") return MakeCudaBackend(options.threads);
  if (options.type == "auto") return CudaIsAvailable() ? MakeCudaBackend(options.threads) : MakeCpuBackend(options.threads, options.bind);
  return UserError(absl::InvalidArgumentError(absl::StrCat("unknown backend; one of auto, cpu, cuda: type=", options.type)));
}

}  // namespace evergrad::worker
