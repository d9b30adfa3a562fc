// The stable sort that groups the gradients of a row. CUB's radix sort is the only algorithm here
// that comes from a library.
#include <cub/device/device_radix_sort.cuh>

#include "worker/backend/cuda/device/launch.cuh"

namespace evergrad::cuda {

std::int64_t SortScratchBytes(std::int64_t n) {
  std::size_t bytes = 0;
  const std::uint32_t* const from = nullptr;
  std::uint32_t* const to = nullptr;
  // A call without scratch memory only returns the needed size.
  const cudaError_t status = cub::DeviceRadixSort::SortPairs(nullptr, bytes, from, to, from, to,
                                                             static_cast<int>(n), 0, 32);
  return status == cudaSuccess ? static_cast<std::int64_t>(bytes) : -1;
}

int32_t SortPairs(cudaStream_t stream, const std::uint32_t* keys, const std::uint32_t* values,
                  std::uint32_t* sorted_keys, std::uint32_t* sorted_values, std::int64_t n,
                  int bits, void* scratch, EgCudaError* error) {
  std::size_t bytes = static_cast<std::size_t>(SortScratchBytes(n));
  EG_CUDA_TRY(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, values,
                                              sorted_values, static_cast<int>(n), 0, bits, stream));
  return EG_CUDA_OK;
}

}  // namespace evergrad::cuda
