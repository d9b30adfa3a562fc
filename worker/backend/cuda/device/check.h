// Every status of CUDA, cuBLAS and cuDNN is looked at, by one of these.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::cuda {

// Fills in *error with "CALL: MESSAGE (cudart CODE)" and returns the kind. cudaSuccess is
// EG_CUDA_OK and leaves *error alone. An error is not the thread's last one any more: CUB would
// take that for its own.
int32_t FromRuntime(cudaError_t status, const char* call, EgCudaError* error);
// Where nobody is left to be told, or it does not matter.
void Ignore(cudaError_t status);
// With words of our own: "TEXT".
int32_t Fail(int32_t kind, int32_t code, EgCudaError* error, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

}  // namespace evergrad::cuda

// Of a runtime call, in a function that returns a kind and has an `error`.
#define EG_CUDA_TRY(call)                                                         \
  do {                                                                            \
    const int32_t eg_kind_ = ::evergrad::cuda::FromRuntime((call), #call, error); \
    if (eg_kind_ != EG_CUDA_OK) return eg_kind_;                                  \
  } while (0)
// Of a function of ours.
#define EG_CUDA_RETURN_IF(expression)            \
  do {                                           \
    const int32_t eg_kind_ = (expression);       \
    if (eg_kind_ != EG_CUDA_OK) return eg_kind_; \
  } while (0)
