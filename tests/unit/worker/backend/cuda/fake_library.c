/* Stands for libevergrad_cuda.so where a test needs one that answers something else. */
#include <stdio.h>
#include <string.h>

#include "worker/backend/cuda/cuda_abi.h"

static const char* Build(void) { return "CUDA 0.0, made up"; }

#ifdef FAKE_TWO_DEVICES
static int32_t DeviceCount(int32_t* count, EgCudaError* error) {
  (void)error;
  *count = 2;
  return EG_CUDA_OK;
}
#else
static int32_t DeviceCount(int32_t* count, EgCudaError* error) {
  *count = 0;
  error->kind = EG_CUDA_NO_DEVICE;
  error->code = 100;
  strcpy(error->text, "no device (100)");
  return error->kind;
}
#endif

static int32_t Device(int32_t ordinal, EgCudaDevice* device, EgCudaError* error) {
  (void)error;
  memset(device, 0, sizeof *device);
  device->ordinal = ordinal;
  device->major = 9;
  device->multiprocessors = 132;
  device->memory_bytes = 80ull << 30;
  snprintf(device->name, sizeof device->name, "Made up %d", ordinal);
  return EG_CUDA_OK;
}

#ifdef FAKE_NO_ENTRY
const EgCudaApi* another_name(void);
const EgCudaApi* another_name(void) {
#else
const EgCudaApi* evergrad_cuda_api(void);
const EgCudaApi* evergrad_cuda_api(void) {
#endif
  static EgCudaApi api;
  api.abi_version = EG_CUDA_ABI_VERSION;
  api.table_bytes = sizeof api;
#ifdef FAKE_OTHER_VERSION
  api.abi_version += 1;
#endif
#ifdef FAKE_OTHER_SIZE
  api.table_bytes += 8;
#endif
  api.build = Build;
  api.device_count = DeviceCount;
  api.device = Device;
  return &api;
}
