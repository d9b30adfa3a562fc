// The final weights as files that other programs read.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/tensor.h"

namespace evergrad::worker {

struct NamedTensor {
  std::string name;  // "dense/kernel"
  tensor::Shape shape;
  std::span<const float> values;
};

// Writes `folder`/weights.npz (a stored zip of .npy entries, "dense/kernel.npy") and `folder`/weights.safetensors, each whole
// beside its target, synced, then renamed over it: a reader sees the old file or the new one, and a repeat gives the same
// bytes. Makes the folder. Returns the absolute paths. Errors name the path.
absl::StatusOr<std::vector<std::string>> WriteWeights(const std::string& folder, const std::vector<NamedTensor>& tensors);

}  // namespace evergrad::worker
