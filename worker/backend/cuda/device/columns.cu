// Sums over the rows for each column, and normalization.
#include "worker/backend/cuda/device/kernels.h"
#include "worker/backend/cuda/device/launch.cuh"
#include "worker/backend/cuda/kernels/launch.h"

namespace evergrad::cuda {

#define EG_RUN(type)                                                            \
  int32_t Run(cudaStream_t stream, const type& arguments, EgCudaError* error) { \
    DeviceLauncher launcher{stream, error};                                     \
    return Launch(launcher, arguments);                                         \
  }
EG_RUN(EgColumnSums)
EG_RUN(EgBatchNorm)
EG_RUN(EgBatchNormInference)
EG_RUN(EgBatchNormBack)
EG_RUN(EgLayerNormBack)

}  // namespace evergrad::cuda
