// libevergrad_cuda.so, loaded: one worker binary runs on hosts with and without a GPU.
//
// Thread-safe. A library that was loaded stays so for the life of the process: CUDA starts threads
// and handlers that outlive any handle.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

inline constexpr char kCudaLibraryName[] = "libevergrad_cuda.so";

// `path`: of the library; "": kCudaLibraryName, beside the executable or where the system's linker
// looks. NotFound: it is not there. FailedPrecondition: it is, but cannot be loaded, has no table,
// or one of another version.
absl::StatusOr<const EgCudaApi*> LoadCudaLibrary(const std::string& path);

// "no CUDA driver (cudart 35)". By kind: NotFound (no driver, no device), ResourceExhausted (no
// memory), InvalidArgument (shape), FailedPrecondition (no library), else Internal.
absl::Status StatusOf(const EgCudaError& error);

// All devices of the host; NotFound says why there is none.
absl::StatusOr<std::vector<EgCudaDevice>> CudaDevices(const EgCudaApi& api);
// "NVIDIA H100 80GB HBM3, sm_90, 132 SMs, 79.6 GiB"
std::string DescribeDevice(const EgCudaDevice& device);

}  // namespace evergrad::worker
