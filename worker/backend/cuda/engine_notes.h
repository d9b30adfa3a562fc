// Which of cuDNN's engines compute what a key asks for, by what the library notes of them.
#pragma once

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::cuda {

struct EngineNotes {
  bool tensor_cores = false;    // TENSOR_CORE: of float32 operands it takes TF32
  bool narrows_inputs = false;  // DOWN_CONVERT_INPUTS: it takes less than TF32 of float32 operands
  bool narrow_sums = false;     // REDUCED_PRECISION_REDUCTION: it adds up in less than float32
  bool carries_nan = false;     // STRICT_NAN_PROP
};

inline bool Computes(const EgPlanKey& key, const EngineNotes& notes) {
  if (key.relu != 0 && !notes.carries_nan) return false;
  if (notes.narrows_inputs) return false;
  return key.type == EG_FLOAT32 ? !notes.tensor_cores || key.tf32 != 0 : !notes.narrow_sums;
}

}  // namespace evergrad::cuda
