// Loads libevergrad_cuda.so at run time, so that one worker binary runs on hosts with and without a
// GPU.
//
// Thread-safe. A loaded library stays loaded for the life of the process, because CUDA starts
// threads and handlers that outlive any handle.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/cuda/cuda_abi.h"

namespace evergrad::worker {

inline constexpr char kCudaLibraryName[] = "libevergrad_cuda.so";

// Loads the library at `path`. "" means kCudaLibraryName beside the executable, or in the linker's
// folders. Returns NotFound if the library does not exist, and FailedPrecondition if the library
// cannot be loaded, or has no function table or a table of another version.
absl::StatusOr<const EgCudaApi*> LoadCudaLibrary(const std::string& path);

// Returns a status like "no CUDA driver (cudart 35)". The status code depends on the kind of the
// error: NotFound (no driver, no device), ResourceExhausted (out of memory), InvalidArgument
// (shape), FailedPrecondition (no library), or else Internal.
absl::Status StatusOf(const EgCudaError& error);

// Returns all devices of the host. Returns NotFound with the reason if there is no device.
absl::StatusOr<std::vector<EgCudaDevice>> CudaDevices(const EgCudaApi& api);
// Returns "NVIDIA H100 80GB HBM3, sm_90, 132 SMs, 79.6 GiB".
std::string DescribeDevice(const EgCudaDevice& device);

}  // namespace evergrad::worker
