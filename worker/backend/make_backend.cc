#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/device_choice.h"

namespace evergrad::worker {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  EG_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(options.device, options.cuda_library));
  if (choice.gpu() && options.device != "auto")
    return UserError(absl::UnimplementedError(absl::StrCat("this version computes on the CPU only; use `cpu`: device=", choice.text)));
  return MakeCpuBackend(options.threads, options.bind);
}

}  // namespace evergrad::worker
