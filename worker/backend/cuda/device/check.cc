#include "worker/backend/cuda/device/check.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace evergrad::cuda {

int32_t Fail(int32_t kind, int32_t code, EgCudaError* error, const char* format, ...) {
  error->kind = kind;
  error->code = code;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return kind;
}

namespace {

// cudart returns the same error for a host without a driver and for a driver that is too old.
int32_t NoDriver(cudaError_t status, EgCudaError* error) {
  int serves = 0;
  if (cudaDriverGetVersion(&serves) != cudaSuccess || serves == 0)
    return Fail(EG_CUDA_NO_DRIVER, status, error, "no CUDA driver (cudart %d)", status);
  return Fail(
      EG_CUDA_NO_DRIVER, status, error,
      "the CUDA driver is too old: it supports CUDA %d.%d, this library requires %d.%d (cudart %d)",
      serves / 1000, serves % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, status);
}

}  // namespace

void Ignore(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

int32_t FromRuntime(cudaError_t status, const char* call, EgCudaError* error) {
  Ignore(status);
  switch (status) {
    case cudaSuccess: return EG_CUDA_OK;
    case cudaErrorInsufficientDriver: return NoDriver(status, error);
    case cudaErrorNoDevice: return Fail(EG_CUDA_NO_DEVICE, status, error, "no device (%d)", status);
    default: break;
  }
  const int32_t kind = status == cudaErrorMemoryAllocation ? EG_CUDA_NO_MEMORY : EG_CUDA_FAILED;
  // Only the name of the call is kept, because its arguments mean nothing to a reader of the error.
  const char* const open = std::strchr(call, '(');
  const int length =
      open == nullptr ? static_cast<int>(std::strlen(call)) : static_cast<int>(open - call);
  return Fail(kind, status, error, "%.*s: %s (cudart %d)", length, call, cudaGetErrorString(status),
              status);
}

}  // namespace evergrad::cuda
