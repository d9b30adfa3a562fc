// Runs maps and team programs (kernels/team.h) on the device, as CUDA launches on one stream.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "worker/backend/cuda/device/check.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// The largest number of blocks in a launch. If there are more indices than threads, a thread
// processes several indices.
inline constexpr std::int64_t kGridMax = 1 << 20;

// Returns the value of the lane that is `offset` lanes further in the warp. A T consists of whole
// 32-bit words.
template <typename T>
__device__ __forceinline__ T ShuffleDown(const T& value, int offset) {
  static_assert(sizeof(T) % 4 == 0);
  unsigned words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned w = 0; w < sizeof(T) / 4; ++w)
    words[w] = __shfl_down_sync(0xFFFFFFFFu, words[w], static_cast<unsigned>(offset));
  T result;
  memcpy(&result, words, sizeof(T));
  return result;
}
template <typename T>
__device__ __forceinline__ T FirstLane(const T& value) {
  unsigned words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned w = 0; w < sizeof(T) / 4; ++w) words[w] = __shfl_sync(0xFFFFFFFFu, words[w], 0);
  T result;
  memcpy(&result, words, sizeof(T));
  return result;
}

// Computes the same sums as HostTeam, in the same order. All threads of a team must make each call
// of Reduce.
template <int kCount>
struct DeviceTeam {
  static constexpr int kThreads = kCount;
  int thread;

  template <typename F>
  __device__ __forceinline__ void For(std::int64_t n, F f) const {
    for (std::int64_t i = thread; i < n; i += kThreads) f(i);
  }
  template <typename T, typename Load, typename Combine>
  __device__ __forceinline__ T Reduce(std::int64_t n, T zero, Load load, Combine combine) const {
    T mine = zero;
    for (std::int64_t i = thread; i < n; i += kThreads) mine = combine(mine, load(i));
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      mine = combine(mine, ShuffleDown(mine, offset));
    if constexpr (kThreads == kWarp) return FirstLane(mine);
    __shared__ __align__(16) unsigned char memory[kThreads / kWarp * sizeof(T)];
    T* const warps = reinterpret_cast<T*>(memory);
    __syncthreads();  // now the result of the last Reduce has been read
    if (thread % kWarp == 0) warps[thread / kWarp] = mine;
    __syncthreads();
    T all = warps[0];
    for (int w = 1; w < kThreads / kWarp; ++w) all = combine(all, warps[w]);
    return all;
  }
  template <typename F>
  __device__ __forceinline__ void Once(F f) const {
    if (thread == 0) f();
  }
};

template <typename Op>
__global__ void __launch_bounds__(kBlock)
    MapKernel(std::int64_t count, const __grid_constant__ Op op) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlock;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count;
       i += step)
    op(i);
}
// All threads of a team run the same iterations.
template <int kThreads, typename Op>
__global__ void __launch_bounds__(kBlock)
    TeamKernel(std::int64_t count, const __grid_constant__ Op op) {
  constexpr int kTeams = kBlock / kThreads;
  const DeviceTeam<kThreads> team{static_cast<int>(threadIdx.x) % kThreads};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kTeams;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTeams +
                        static_cast<int>(threadIdx.x) / kThreads;
       i < count; i += step)
    op(team, i);
}

// A stable radix sort of pairs (sort.cu).
std::int64_t SortScratchBytes(std::int64_t n);
int32_t SortPairs(cudaStream_t stream, const std::uint32_t* keys, const std::uint32_t* values,
                  std::uint32_t* sorted_keys, std::uint32_t* sorted_values, std::int64_t n,
                  int bits, void* scratch, EgCudaError* error);

struct DeviceLauncher {
  cudaStream_t stream;
  EgCudaError* error;

  static unsigned Grid(std::int64_t count, std::int64_t per_block) {
    const std::int64_t blocks = (count + per_block - 1) / per_block;
    return static_cast<unsigned>(blocks < kGridMax ? blocks : kGridMax);
  }
  // Returns the status of the call itself, because the thread's last error may come from another
  // call that was allowed to fail.
  template <typename Op>
  int32_t Start(unsigned grid, void (*kernel)(std::int64_t, Op), std::int64_t count, const Op& op) {
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(grid);
    launch.blockDim = dim3(kBlock);
    launch.stream = stream;
    EG_CUDA_TRY(cudaLaunchKernelEx(&launch, kernel, count, op));
    return EG_CUDA_OK;
  }
  template <typename Op>
  int32_t Map(std::int64_t count, const Op& op) {
    static_assert(sizeof(Op) <= 4000, "a kernel of CUDA takes at most 4 KB of arguments");
    if (count <= 0) return EG_CUDA_OK;
    return Start(Grid(count, kBlock), MapKernel<Op>, count, op);
  }
  template <int kThreads, typename Op>
  int32_t Teams(std::int64_t count, const Op& op) {
    static_assert(sizeof(Op) <= 4000, "a kernel of CUDA takes at most 4 KB of arguments");
    if (count <= 0) return EG_CUDA_OK;
    return Start(Grid(count, kBlock / kThreads), TeamKernel<kThreads, Op>, count, op);
  }
  int32_t Zero(void* to, std::uint64_t bytes) {
    EG_CUDA_TRY(cudaMemsetAsync(to, 0, bytes, stream));
    return EG_CUDA_OK;
  }
  int32_t Copy(void* to, const void* from, std::uint64_t bytes) {
    EG_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
    return EG_CUDA_OK;
  }
  static std::int64_t SortBytes(std::int64_t n) { return SortScratchBytes(n); }
  int32_t Sort(const std::uint32_t* keys, const std::uint32_t* values, std::uint32_t* sorted_keys,
               std::uint32_t* sorted_values, std::int64_t n, int bits, void* scratch) {
    return SortPairs(stream, keys, values, sorted_keys, sorted_values, n, bits, scratch, error);
  }
};

}  // namespace evergrad::cuda
