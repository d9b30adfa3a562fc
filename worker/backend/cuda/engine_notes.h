// Decides which of cuDNN's engines are exact enough for a computation and propagate NaN. The
// decision uses the notes that cuDNN has about each engine.
#pragma once

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::cuda {

struct EngineNotes {
  bool tensor_cores = false;  // TENSOR_CORE: uses TF32 for float32 operands
  // DOWN_CONVERT_INPUTS: rounds float32 operands to fewer bits than TF32.
  bool narrows_inputs = false;
  bool narrow_sums = false;  // REDUCED_PRECISION_REDUCTION: sums below float32
  // WINOGRAD_TILE_13x13. In float32 and with 64 channels, Winograd's F(9x9, 5x5) with the usual
  // interpolation points has an error of 10^-2 of the largest output. Direct sums have an error of
  // 10^-6, and F(4x4, 3x3) has an error of 4 * 10^-6.
  bool large_tiles = false;
  bool carries_nan = false;  // STRICT_NAN_PROP
};

inline bool Computes(const EgPlanKey& key, const EngineNotes& notes) {
  if (key.relu != 0 && !notes.carries_nan) return false;
  if (notes.narrows_inputs || notes.large_tiles) return false;
  return key.type == EG_FLOAT32 ? !notes.tensor_cores || key.tf32 != 0 : !notes.narrow_sums;
}

}  // namespace evergrad::cuda
