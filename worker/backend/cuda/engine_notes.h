// Which of cuDNN's engines compute what a key asks for, by what the library notes of them.
#pragma once

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::cuda {

struct EngineNotes {
  bool tensor_cores = false;    // TENSOR_CORE: of float32 operands it takes TF32
  bool narrows_inputs = false;  // DOWN_CONVERT_INPUTS: it takes less than TF32 of float32 operands
  bool narrow_sums = false;     // REDUCED_PRECISION_REDUCTION: it adds up in less than float32
  // WINOGRAD_TILE_13x13: F(9x9, 5x5) of 64 channels in float32 errs by 10^-2 of the largest output
  // with plain points, where direct sums err by 10^-6 and F(4x4, 3x3) by 4 10^-6.
  bool large_tiles = false;
  bool carries_nan = false;  // STRICT_NAN_PROP
};

inline bool Computes(const EgPlanKey& key, const EngineNotes& notes) {
  if (key.relu != 0 && !notes.carries_nan) return false;
  if (notes.narrows_inputs || notes.large_tiles) return false;
  return key.type == EG_FLOAT32 ? !notes.tensor_cores || key.tf32 != 0 : !notes.narrow_sums;
}

}  // namespace evergrad::cuda
