#include "worker/backend/cuda/device_choice.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

constexpr int kOrdinalMax = 255;

// Returns the GPU `ordinal`, or the reason why it is not usable.
absl::StatusOr<DeviceChoice> TakeGpu(int ordinal, const std::string& library) {
  DeviceChoice choice;
  EG_ASSIGN_OR_RETURN(choice.api, LoadCudaLibrary(library));
  EG_ASSIGN_OR_RETURN(const std::vector<EgCudaDevice> devices, CudaDevices(*choice.api));
  if (static_cast<std::size_t>(ordinal) >= devices.size())
    return absl::NotFoundError(
        absl::StrCat("this host has ", devices.size(), devices.size() == 1 ? " GPU" : " GPUs"));
  choice.device = devices[static_cast<std::size_t>(ordinal)];
  choice.name = absl::StrCat("gpu:", ordinal);
  choice.text =
      absl::StrCat(choice.name, " ", DescribeDevice(choice.device), " (", choice.api->build(), ")");
  return choice;
}

}  // namespace

absl::StatusOr<DeviceName> ParseDevice(absl::string_view text) {
  using Kind = DeviceName::Kind;
  if (text == "auto") return DeviceName{Kind::kAuto, 0};
  if (text == "cpu") return DeviceName{Kind::kCpu, 0};
  if (text == "gpu") return DeviceName{Kind::kGpu, 0};
  absl::string_view digits = text;
  int ordinal = 0;
  // Signs, spaces and leading zeros are refused, because a device has exactly one name.
  if (absl::ConsumePrefix(&digits, "gpu:") && absl::SimpleAtoi(digits, &ordinal) && ordinal >= 0 &&
      ordinal <= kOrdinalMax && absl::StrCat(ordinal) == digits)
    return DeviceName{Kind::kGpu, ordinal};
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("unknown device: want=auto, cpu, gpu or gpu:N got=", text)));
}

absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device, const std::string& library) {
  EG_ASSIGN_OR_RETURN(const DeviceName name, ParseDevice(device));
  DeviceChoice cpu;
  cpu.name = "cpu";
  cpu.text = "cpu: as requested";
  if (name.kind == DeviceName::Kind::kCpu) return cpu;
  absl::StatusOr<DeviceChoice> gpu = TakeGpu(name.ordinal, library);
  if (gpu.ok()) return gpu;
  if (name.kind == DeviceName::Kind::kGpu)
    return UserError(absl::FailedPreconditionError(
        absl::StrCat("device ", device, " is not usable: ", gpu.status().message())));
  cpu.text = absl::StrCat("cpu: ", gpu.status().message());
  return cpu;
}

absl::StatusOr<std::string> ListDevices(const std::string& library) {
  absl::StatusOr<const EgCudaApi*> api = LoadCudaLibrary(library);
  absl::StatusOr<std::vector<EgCudaDevice>> devices = api.ok() ? CudaDevices(**api) : api.status();
  if (!devices.ok())
    return UserError(
        absl::FailedPreconditionError(absl::StrCat("no GPU: ", devices.status().message())));
  std::string text;
  for (const EgCudaDevice& device : *devices)
    absl::StrAppend(&text, "gpu:", device.ordinal, " ", DescribeDevice(device), "\n");
  return text;
}

}  // namespace evergrad::worker
