// The function table of libevergrad_cuda.so, and its functions that need no context.
#include <cuda_runtime_api.h>
#include <cudnn_version.h>

#include <cstdio>

#include "worker/backend/cuda/device/check.h"
#include "worker/backend/cuda/device/context_table.h"

namespace evergrad::cuda {
namespace {

#define EG_TEXT_(x) #x
#define EG_TEXT(x) EG_TEXT_(x)

const char* Build() {
  static const char* const text = [] {
    static char buffer[64];
    std::snprintf(buffer, sizeof buffer,
                  "CUDA %d.%d, cuDNN " EG_TEXT(CUDNN_MAJOR) "." EG_TEXT(CUDNN_MINOR),
                  CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return buffer;
  }();
  return text;
}

int32_t DeviceCount(int32_t* count, EgCudaError* error) {
  *count = 0;
  int found = 0;
  EG_CUDA_TRY(cudaGetDeviceCount(&found));
  // The runtime reports a missing device as an error; a count of 0 is treated in the same way.
  if (found == 0) return FromRuntime(cudaErrorNoDevice, "cudaGetDeviceCount", error);
  *count = found;
  return EG_CUDA_OK;
}

int32_t Device(int32_t ordinal, EgCudaDevice* device, EgCudaError* error) {
  cudaDeviceProp properties;
  EG_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  *device = EgCudaDevice{};
  device->ordinal = ordinal;
  device->major = properties.major;
  device->minor = properties.minor;
  device->multiprocessors = properties.multiProcessorCount;
  device->memory_bytes = properties.totalGlobalMem;
  std::snprintf(device->name, sizeof device->name, "%s", properties.name);
  return EG_CUDA_OK;
}

}  // namespace
}  // namespace evergrad::cuda

extern "C" __attribute__((visibility("default"))) const EgCudaApi* evergrad_cuda_api() {
  static const EgCudaApi api = [] {
    EgCudaApi table{};
    table.abi_version = EG_CUDA_ABI_VERSION;
    table.table_bytes = sizeof(EgCudaApi);
    table.build = &evergrad::cuda::Build;
    table.device_count = &evergrad::cuda::DeviceCount;
    table.device = &evergrad::cuda::Device;
    evergrad::cuda::FillContext(&table);
    return table;
  }();
  return &api;
}
