// Checks that a GPU computes the same as the CPU before a worker uses it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/device_choice.h"

namespace evergrad::worker {

// Compares dense layers and convolutions forward and backward, a reduction, elementwise passes, and
// a step that is recorded and replayed with concurrent copies, on random numbers from `seed`.
// `device` and `reference` must agree to 1e-4 of each array's largest number. DataLoss:
// "primitive=dense gradient of x want=0.25 got=nan"; or the device's own error.
absl::Status CompareBackends(Backend& device, Backend& reference, std::uint64_t seed);

// ChooseDevice, and then opens a GPU and compares it with the CPU, in a separate context that is
// closed again (about half a second). If it cannot be opened or computes something else, `auto`
// gives the CPU with the reason, and a request for a GPU gives UserError.
absl::StatusOr<DeviceChoice> ChooseCheckedDevice(absl::string_view device,
                                                 const std::string& library, std::uint64_t seed);

}  // namespace evergrad::worker
