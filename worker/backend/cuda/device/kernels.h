// Functions that queue the operations of cuda_ops.h on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/cuda_ops.h"

namespace evergrad::cuda {

#define EG_DECLARE_(name, type) \
  int32_t Run(cudaStream_t stream, const type& arguments, EgCudaError* error);
EG_OPS(EG_DECLARE_)
#undef EG_DECLARE_
std::int64_t SortScratchBytes(std::int64_t n);

}  // namespace evergrad::cuda
