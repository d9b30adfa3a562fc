// The backend on one GPU, through the table of libevergrad_cuda.so.
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
  GraphCapture::Options capture;              // of steps
  std::uint64_t staging_bytes = 32ull << 20;  // page-locked, for uploads from memory that is not
  std::uint64_t workspace_bytes_max = 256ull << 20;  // of one algorithm
};

// What a device's backend counts, beside what every backend does.
struct CudaStats {
  BlockCache::Stats memory;
  StagingRing::Stats staging;
  GraphCapture::Stats capture;
  std::uint64_t plans = 0, plans_measured = 0;
  std::uint64_t products_widened =
      0;  // asked for in 16 bits, which the library has no algorithm for, and computed in float32
};

class CudaBackend : public Backend {
 public:
  virtual CudaStats stats() const = 0;
};

// On the thread that will compute. `choice` is a GPU. ResourceExhausted, FailedPrecondition
// (cuBLASLt or cuDNN), Internal.
absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(const DeviceChoice& choice,
                                                             const CudaOptions& options);

}  // namespace evergrad::worker
