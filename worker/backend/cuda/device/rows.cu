// Kernels whose result for a row depends on the whole row; losses and metrics.
#include "worker/backend/cuda/device/kernels.h"
#include "worker/backend/cuda/device/launch.cuh"
#include "worker/backend/cuda/kernels/launch.h"

namespace evergrad::cuda {

#define EG_RUN(type)                                                            \
  int32_t Run(cudaStream_t stream, const type& arguments, EgCudaError* error) { \
    DeviceLauncher launcher{stream, error};                                     \
    return Launch(launcher, arguments);                                         \
  }
EG_RUN(EgSoftmax)
EG_RUN(EgSoftmaxBack)
EG_RUN(EgLayerNorm)
EG_RUN(EgDot)
EG_RUN(EgDotBack)
EG_RUN(EgSquares)
EG_RUN(EgLoss)
EG_RUN(EgAuc)
EG_RUN(EgMeanSquares)

}  // namespace evergrad::cuda
