// Helpers that check every status of CUDA, cuBLAS and cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::cuda {

// Fills *error with "CALL: MESSAGE (cudart CODE)" and returns the kind. For cudaSuccess the
// function returns EG_CUDA_OK and leaves *error unchanged. Clears the thread's last error, which
// CUB would otherwise take for its own.
int32_t FromRuntime(cudaError_t status, const char* call, EgCudaError* error);
// Ignores a status, in places that cannot report an error or need not.
void Ignore(cudaError_t status);
// Fills in an error with our own message, and returns its kind.
int32_t Fail(int32_t kind, int32_t code, EgCudaError* error, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

}  // namespace evergrad::cuda

// Returns from the calling function if the runtime call fails. The calling function must return an
// EgCudaKind, and must have a variable `error` of type EgCudaError*.
#define EG_CUDA_TRY(call)                                                         \
  do {                                                                            \
    const int32_t eg_kind_ = ::evergrad::cuda::FromRuntime((call), #call, error); \
    if (eg_kind_ != EG_CUDA_OK) return eg_kind_;                                  \
  } while (0)
// Does the same for one of our own functions.
#define EG_CUDA_RETURN_IF(expression)            \
  do {                                           \
    const int32_t eg_kind_ = (expression);       \
    if (eg_kind_ != EG_CUDA_OK) return eg_kind_; \
  } while (0)
