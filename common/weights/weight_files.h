// Weights as files that other programs read.
//
// Blocking, thread-safe for different paths. Each file is written whole beside its target, synced,
// then renamed over it: a reader sees the old file or the new one, never half. The same weights
// give the same bytes. Errors name the path: NotFound (its folder), PermissionDenied,
// ResourceExhausted (disk full), …, InvalidArgument (no variables); then the target is as it was.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/tensor.h"

namespace evergrad::weights {

struct NamedTensor {
  std::string name;  // "dense/kernel"
  tensor::Shape shape;
  std::span<const float> values;  // row-major; a loan for the call
};

// A stored zip of .npy entries, "dense/kernel.npy": numpy.load(path)["dense/kernel"].
absl::Status WriteNpz(const std::string& path, const std::vector<NamedTensor>& tensors);
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace evergrad::weights
