// Checks that a GPU computes the same results as the CPU, before a worker uses the GPU.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/device_choice.h"

namespace evergrad::worker {

// Compares the device with the reference on random numbers from `seed`. The check covers dense
// layers and convolutions forward and backward, a reduction, elementwise passes, and a step that is
// recorded and replayed with concurrent copies. The results must differ by at most 1e-4 of the
// largest number of each array. Returns DataLoss ("primitive=dense gradient of x want=0.25
// got=nan") or the device's own error.
absl::Status CompareBackends(Backend& device, Backend& reference, std::uint64_t seed);

// Calls ChooseDevice, then opens a chosen GPU and compares it with the CPU. The check uses a
// separate context, which is closed again, and takes about half a second. If the GPU cannot be
// opened or computes other results, `auto` selects the CPU with the reason, and a request for a GPU
// fails with UserError.
absl::StatusOr<DeviceChoice> ChooseCheckedDevice(absl::string_view device,
                                                 const std::string& library, std::uint64_t seed);

}  // namespace evergrad::worker
