// The two forms in which kernels are written. nvcc compiles them for the device. A C++ compiler
// compiles the same code for the host, where tests run it over odd shapes and tails.
//
// A *map* is a struct with `void operator()(std::int64_t i) const`, called once for each i below a
// count, in any order. A *team program* has `void operator()(Team& team, std::int64_t i) const`,
// run by `Team::kThreads` threads together, one team for each i:
//
//   team.For(n, f)                       f(0) … f(n-1), each on one thread: thread t runs i = t,
//                                        t + kThreads, …, so neighbours read neighbours
//   team.Reduce(n, zero, load, combine)  combine of all load(i), known to every thread. Thread t
//                                        combines its i in rising order; then lane l combines lanes
//                                        l+16, l+8, …, l+1; then the warps in order. So the sum is
//                                        a function of n and kThreads
//   team.Once(f)                         f() on one thread
//
// Team is Warp (32 threads) or Block (256). On the device, Team is the class of device/launch.cuh;
// on the host, it is HostTeam below, which computes the same sums. Between For, Reduce and Once a
// thread does not see the writes of other threads, except through Reduce's result.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define EG_HD __host__ __device__ __forceinline__
#else
#define EG_HD inline
#endif
#ifdef __CUDA_ARCH__
#define EG_UNROLL _Pragma("unroll")  // unknown to the host's compiler
#else
#define EG_UNROLL
#endif

namespace evergrad::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kBlock = 256;

struct Plus {
  template <typename T>
  EG_HD T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
// Returns the larger value, or NaN if either is NaN.
struct MaxOrNan {
  EG_HD float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

#ifndef __CUDACC__
// Executes the threads of a team one after another.
template <int kCount>
struct HostTeam {
  static constexpr int kThreads = kCount;
  template <typename F>
  void For(std::int64_t n, F f) const {
    for (int t = 0; t < kThreads; ++t)
      for (std::int64_t i = t; i < n; i += kThreads) f(i);
  }
  template <typename T, typename Load, typename Combine>
  T Reduce(std::int64_t n, T zero, Load load, Combine combine) const {
    T part[kThreads];
    for (int t = 0; t < kThreads; ++t) {
      part[t] = zero;
      for (std::int64_t i = t; i < n; i += kThreads) part[t] = combine(part[t], load(i));
    }
    for (int warp = 0; warp < kThreads; warp += kWarp)
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        for (int lane = 0; lane < offset; ++lane)
          part[warp + lane] = combine(part[warp + lane], part[warp + lane + offset]);
    T all = part[0];
    for (int warp = kWarp; warp < kThreads; warp += kWarp) all = combine(all, part[warp]);
    return all;
  }
  template <typename F>
  void Once(F f) const {
    f();
  }
};
#endif

}  // namespace evergrad::cuda
