// Whether a GPU computes what the CPU computes, before a worker trusts it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/device_choice.h"

namespace evergrad::worker {

// Dense layers and convolutions forward and backward, a reduction, passes element by element, and a
// step that is recorded and run again with copies beside it, on random numbers from `seed`:
// `device` and `reference` agree to 1e-4 of each array's largest number. DataLoss: "primitive=dense
// gradient of x want=0.25 got=nan"; or the device's own error.
absl::Status CompareBackends(Backend& device, Backend& reference, std::uint64_t seed);

// ChooseDevice, and a GPU is opened and compared with the CPU, in a context of its own that is
// closed again (about half a second). Where it cannot be opened or computes something else, `auto`
// is the CPU, and says why; UserError where a GPU was asked for.
absl::StatusOr<DeviceChoice> ChooseCheckedDevice(absl::string_view device,
                                                 const std::string& library, std::uint64_t seed);

}  // namespace evergrad::worker
