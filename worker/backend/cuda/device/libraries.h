// cuBLASLt and cuDNN, which are loaded when a device is opened. Each function has the name and the
// type of its declaration in the library's header, so a wrong use does not compile.
#pragma once

#include <cublasLt.h>
#include <cudnn_graph.h>

#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::cuda {

// clang-format off
#define EG_BLAS_FUNCTIONS(X) \
  X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetStatusString) X(cublasLtMatmul) \
  X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) \
  X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoConfigGetAttribute)
#define EG_DNN_FUNCTIONS(X) \
  X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetErrorString) \
  X(cudnnGetLastErrorString) X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendFinalize) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) \
  X(cudnnBackendExecute) X(cudnnGetVersion)
// clang-format on

#define EG_POINTER_(name) decltype(&::name) name = nullptr;
struct Blas {
  EG_BLAS_FUNCTIONS(EG_POINTER_)
};
struct Dnn {
  EG_DNN_FUNCTIONS(EG_POINTER_)
};
#undef EG_POINTER_

// Loads the libraries once for the process. If one is missing, returns EG_CUDA_NO_LIBRARY with the
// linker's message. Thread-safe.
int32_t LoadBlas(const Blas** blas, EgCudaError* error);
int32_t LoadDnn(const Dnn** dnn, EgCudaError* error);

// The driver's libnvidia-ml.so.1, for statistics only. The build does not need its header, so the
// three functions are declared here as in nvml.h (status 0 means success).
struct Nvml {
  struct Rates {
    unsigned int gpu, memory;  // percent
  };
  int (*Init)() = nullptr;
  int (*DeviceGetHandleByPciBusId)(const char* bus, void** device) = nullptr;
  int (*DeviceGetUtilizationRates)(void* device, Rates* rates) = nullptr;
};
int32_t LoadNvml(const Nvml** nvml, EgCudaError* error);

}  // namespace evergrad::cuda
