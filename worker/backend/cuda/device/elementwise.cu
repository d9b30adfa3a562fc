// Kernels that access each element once, and pooling.
#include "worker/backend/cuda/device/kernels.h"
#include "worker/backend/cuda/device/launch.cuh"
#include "worker/backend/cuda/kernels/launch.h"

namespace evergrad::cuda {

#define EG_RUN(type)                                                            \
  int32_t Run(cudaStream_t stream, const type& arguments, EgCudaError* error) { \
    DeviceLauncher launcher{stream, error};                                     \
    return Launch(launcher, arguments);                                         \
  }
EG_RUN(EgActivate)
EG_RUN(EgActivateBack)
EG_RUN(EgDropout)
EG_RUN(EgZero)
EG_RUN(EgCast)
EG_RUN(EgScale)
EG_RUN(EgSum)
EG_RUN(EgMultiply)
EG_RUN(EgCopyColumns)
EG_RUN(EgTranspose)
EG_RUN(EgPad)
EG_RUN(EgBiasActivate)
EG_RUN(EgNotFinite)
EG_RUN(EgMaxPool)
EG_RUN(EgMaxPoolBack)
EG_RUN(EgAveragePool)
EG_RUN(EgAveragePoolBack)

}  // namespace evergrad::cuda
