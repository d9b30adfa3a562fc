// Parses `device: auto | cpu | gpu | gpu:N`, and selects the device of this process, with a reason.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

struct DeviceName {
  enum class Kind { kAuto, kCpu, kGpu } kind = Kind::kAuto;
  int ordinal = 0;  // ordinal of a GPU; `gpu` is gpu:0
};
// Parses a name. Returns UserError for an unknown name.
absl::StatusOr<DeviceName> ParseDevice(absl::string_view text);

struct DeviceChoice {
  const EgCudaApi* api = nullptr;  // nullptr for the CPU
  EgCudaDevice device{};
  std::string name;  // "cpu", "gpu:0"
  std::string text;  // "cpu: libevergrad_cuda.so does not exist", "gpu:0 NVIDIA H100 …"
  bool gpu() const { return api != nullptr; }
};
// Selects a device. `auto` selects the first usable GPU, or else the CPU with the reason. `library`
// is the path for LoadCudaLibrary. Returns UserError for an unknown name, or if a requested GPU is
// not usable: "device gpu:1 is not usable: …".
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device, const std::string& library);

// Returns one line per GPU, "gpu:0 NVIDIA H100 …", or UserError with the reason if there is none.
absl::StatusOr<std::string> ListDevices(const std::string& library);

}  // namespace evergrad::worker
