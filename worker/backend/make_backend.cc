#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/device_choice.h"

namespace evergrad::worker {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  EG_ASSIGN_OR_RETURN(const DeviceChoice choice,
                      ChooseDevice(options.device, options.cuda_library));
  if (choice.gpu()) return MakeCudaBackend(choice, {});
  return MakeCpuBackend(options.threads, options.bind);
}

}  // namespace evergrad::worker
