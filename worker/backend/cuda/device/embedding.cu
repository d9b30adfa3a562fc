// Embeddings and factorization machines.
#include "worker/backend/cuda/device/kernels.h"
#include "worker/backend/cuda/device/launch.cuh"
#include "worker/backend/cuda/kernels/launch.h"

namespace evergrad::cuda {

#define EG_RUN(type)                                                            \
  int32_t Run(cudaStream_t stream, const type& arguments, EgCudaError* error) { \
    DeviceLauncher launcher{stream, error};                                     \
    return Launch(launcher, arguments);                                         \
  }
EG_RUN(EgFactorization)
EG_RUN(EgFactorizationBack)
EG_RUN(EgGather)
EG_RUN(EgScatter)

}  // namespace evergrad::cuda
