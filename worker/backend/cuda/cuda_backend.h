// The backend on one GPU, through the function table of libevergrad_cuda.so.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/block_cache.h"
#include "worker/backend/cuda/device_choice.h"
#include "worker/backend/cuda/graph_capture.h"
#include "worker/backend/cuda/staging_ring.h"

namespace evergrad::worker {

struct CudaOptions {
  GraphCapture::Options capture;              // for captures of steps
  std::uint64_t staging_bytes = 32ull << 20;  // page-locked memory for uploads from other memory
  std::uint64_t workspace_bytes_max = 256ull << 20;  // limit of one algorithm's workspace
};

// The counters of a GPU's backend, in addition to the counters of every backend.
struct CudaStats {
  BlockCache::Stats memory;
  StagingRing::Stats staging;
  GraphCapture::Stats capture;
  std::uint64_t plans = 0, plans_measured = 0;
  // The number of products that were requested in 16 bits but computed in float32, because the
  // library has no algorithm for them.
  std::uint64_t products_widened = 0;
};

class CudaBackend : public Backend {
 public:
  virtual CudaStats stats() const = 0;
};

// Makes the backend, on the compute thread. `choice` must be a GPU. Errors are ResourceExhausted,
// FailedPrecondition (cuBLASLt or cuDNN) and Internal.
absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(const DeviceChoice& choice,
                                                             const CudaOptions& options);

}  // namespace evergrad::worker
