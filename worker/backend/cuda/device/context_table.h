// The part of the function table that needs a device.
#pragma once

#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::cuda {

void FillContext(EgCudaApi* table);

}  // namespace evergrad::cuda
