// Writes weights as files for other programs.
//
// Blocking; thread-safe for different paths. Each file is written completely beside its target,
// synced, and renamed over it, so a reader sees the old file or the new one. The same weights give
// the same bytes. Errors name the path. The error is InvalidArgument if there are no variables, or
// if two variables have the same name. Other errors are those of fs::FileError, for example
// NotFound for a missing folder or ResourceExhausted for a full disk. After an error the target is
// unchanged.
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
  std::span<const float> values;  // row-major; borrowed for the call
};

// Writes a zip file of uncompressed .npy entries: numpy.load(path)["dense/kernel"] reads
// "dense/kernel.npy".
absl::Status WriteNpz(const std::string& path, const std::vector<NamedTensor>& tensors);
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace evergrad::weights
