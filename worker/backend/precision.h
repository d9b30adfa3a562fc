// The names of the precisions of `training.precision`.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// Returns the precision with this name, or nullopt for an unknown name.
inline std::optional<Precision> ParsePrecision(absl::string_view name) {
  if (name == "float32") return Precision::kFloat32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "mixed_bfloat16") return Precision::kMixedBFloat16;
  if (name == "mixed_float16") return Precision::kMixedFloat16;
  return std::nullopt;
}

}  // namespace evergrad::worker
