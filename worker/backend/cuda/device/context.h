// One device: its queues, the handles of cuBLASLt and cuDNN, and the state of a capture.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <memory>
#include <vector>

#include "worker/backend/cuda/cuda_abi.h"
#include "worker/backend/cuda/device/check.h"
#include "worker/backend/cuda/device/libraries.h"

// A plan of one of the two libraries.
struct EgPlan {
  virtual ~EgPlan() = default;
  virtual int32_t Run(EgContext* context, const EgPlanArguments& arguments, EgCudaError* error) = 0;
};
struct EgContext {
  int ordinal = 0;
  cudaStream_t lanes[3] = {};
  const evergrad::cuda::Blas* blas = nullptr;
  const evergrad::cuda::Dnn* dnn = nullptr;
  cublasLtHandle_t blas_handle = nullptr;
  cudnnHandle_t dnn_handle = nullptr;
  bool capturing = false;
  void* nvml_device = nullptr;  // null until the utilization is first requested
  // The last call of EgCudaApi::plans had the key `offered_key` and offered the cuDNN plans
  // `offered`. The plans are kept until make_plan takes one of them, because making a plan a second
  // time may compile its kernels again.
  EgPlanKey offered_key{};
  std::vector<std::unique_ptr<EgPlan>> offered = {};

  cudaStream_t compute() const { return lanes[EG_LANE_COMPUTE]; }
};
struct EgEvent {
  cudaEvent_t event = nullptr;
};
struct EgGraph {
  cudaGraphExec_t graph = nullptr;
};

namespace evergrad::cuda {

int32_t FromBlas(cublasStatus_t status, const char* call, EgCudaError* error);
int32_t FromDnn(const Dnn& dnn, cudnnStatus_t status, const char* call, EgCudaError* error);

// matmul.cc
int32_t MatmulPlans(EgContext* context, const EgPlanKey& key, EgPlanInfo* infos, int32_t infos_max,
                    int32_t* count, EgCudaError* error);
int32_t MakeMatmulPlan(EgContext* context, const EgPlanKey& key, int32_t index, EgPlan** plan,
                       EgCudaError* error);
// convolution.cc
int32_t ConvolutionPlans(EgContext* context, const EgPlanKey& key, EgPlanInfo* infos,
                         int32_t infos_max, int32_t* count, EgCudaError* error);
int32_t MakeConvolutionPlan(EgContext* context, const EgPlanKey& key, int32_t index, EgPlan** plan,
                            EgCudaError* error);

// Both functions implement EgCudaApi::check_plan.
int32_t CheckMatmul(const EgPlanKey& key, EgCudaError* error);
int32_t CheckConvolution(const EgPlanKey& key, EgCudaError* error);

}  // namespace evergrad::cuda
