// The final weights in a job's runs folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/weight_files.h"

namespace evergrad::worker {

// Writes `folder`/weights.npz and `folder`/weights.safetensors (common/weights). Makes the folder. Returns the absolute paths. Errors name the
// path; a folder that this worker may not write is a user's error.
absl::StatusOr<std::vector<std::string>> WriteWeights(const std::string& folder, const std::vector<weights::NamedTensor>& tensors);

}  // namespace evergrad::worker
