// `device: auto | cpu | gpu | gpu:N`, read and decided: what this process computes on, and why.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

struct DeviceName {
  enum class Kind { kAuto, kCpu, kGpu } kind = Kind::kAuto;
  int ordinal = 0;  // of a GPU; `gpu` is gpu:0
};
// UserError: no such name.
absl::StatusOr<DeviceName> ParseDevice(absl::string_view text);

struct DeviceChoice {
  const EgCudaApi* api = nullptr;  // null: the CPU
  EgCudaDevice device{};
  std::string name;  // "cpu", "gpu:0"
  std::string text;  // "cpu: libevergrad_cuda.so is not there", "gpu:0 NVIDIA H100 …"
  bool gpu() const { return api != nullptr; }
};
// `auto` takes the first GPU that answers, else the CPU, and says why. `library` as
// LoadCudaLibrary's path. UserError: no such name, or a GPU was asked for that cannot be had:
// "device gpu:1 cannot be had: …".
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device, const std::string& library);

// One line a GPU, "gpu:0 NVIDIA H100 …"; UserError says why there is none.
absl::StatusOr<std::string> ListDevices(const std::string& library);

}  // namespace evergrad::worker
