// Kernels that access each element once: activations, dropout, sums, copies of columns, transposes.
//
// The memory bandwidth bounds all of these kernels. An H100 reads and writes 3.35 TB/s, and a chain
// over n elements moves 4 n bytes per array (2 n for 16-bit elements). The time for these bytes
// hides the arithmetic (at most a few tens of operations per element). If every array begins at a
// multiple of 16 bytes, a thread therefore processes as many neighbouring elements as 16 bytes hold
// (four, or eight of 16 bits) with one access, and the tail one by one. Otherwise a thread
// processes one element. Consecutive elementwise steps are fused into one kernel (bias and
// activation), because every additional kernel is an additional pass over memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/element.h"
#include "worker/backend/cuda/kernels/philox.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// y[i] = f(x0[i], x1[i], …, y[i]) for i below n. f gets the old y only if kReads. Inputs have type
// X, y has type Y. If the types differ in size, four elements are processed at a time, so that no
// access exceeds 16 bytes.
template <int kInputs, bool kReads, typename F, typename X = float, typename Y = float>
struct Chain {
  static constexpr int kWide = sizeof(X) == 2 && sizeof(Y) == 2 ? 8 : 4;
  F f;
  std::int64_t n;
  const X* x[kInputs];
  Y* y;
  bool wide;

  Chain(F function, std::int64_t elements, const X* const* inputs, Y* output)
      : f(function), n(elements), y(output), wide(Aligned(output)) {
    for (int k = 0; k < kInputs; ++k) x[k] = inputs[k], wide = wide && Aligned(inputs[k]);
  }
  std::int64_t threads() const { return wide ? DivideUp(n, kWide) : n; }

  EG_HD void operator()(std::int64_t t) const {
    if (!wide) {
      float in[kInputs];
      for (int k = 0; k < kInputs; ++k) in[k] = x[k][t];
      y[t] = Y(f(in, kReads ? static_cast<float>(y[t]) : 0.0f));
      return;
    }
    const std::int64_t begin = kWide * t;
    if (begin + kWide > n) {  // the tail
      for (std::int64_t i = begin; i < n; ++i) {
        float in[kInputs];
        for (int k = 0; k < kInputs; ++k) in[k] = x[k][i];
        y[i] = Y(f(in, kReads ? static_cast<float>(y[i]) : 0.0f));
      }
      return;
    }
    using In = Pack<X, kWide>;
    using Out = Pack<Y, kWide>;
    In in[kInputs];
    Out out{};
    for (int k = 0; k < kInputs; ++k) in[k] = *reinterpret_cast<const In*>(x[k] + begin);
    if (kReads) out = *reinterpret_cast<const Out*>(y + begin);
    for (int e = 0; e < kWide; ++e) {
      float one[kInputs];
      for (int k = 0; k < kInputs; ++k) one[k] = in[k].v[e];
      out.v[e] = Y(f(one, out.v[e]));
    }
    *reinterpret_cast<Out*>(y + begin) = out;
  }
};

// Returns the activation of x; NaN stays NaN.
EG_HD float Activated(int activation, float x) {
  switch (activation) {
    case EG_RELU: return x < 0.0f ? 0.0f : x;
    case EG_TANH: return tanhf(x);
    case EG_SIGMOID: return 1.0f / (1.0f + expf(-x));
    default: return x;
  }
}
// Returns the gradient of the input, given the output y and its gradient dy.
EG_HD float Passed(int activation, float y, float dy) {
  switch (activation) {
    case EG_RELU: return y > 0.0f ? dy : y == y ? 0.0f : y;  // propagates NaN
    case EG_TANH: return dy * (1.0f - y * y);
    case EG_SIGMOID: return dy * y * (1.0f - y);
    default: return dy;
  }
}

struct ActivateF {
  int activation;
  EG_HD float operator()(const float* x, float) const { return Activated(activation, x[0]); }
};
struct ActivateBackF {
  int activation;
  EG_HD float operator()(const float* x, float) const { return Passed(activation, x[0], x[1]); }
};
// A NaN becomes quiet, as in the conversion for the wire.
struct CastF {
  EG_HD float operator()(const float* x, float) const {
    return x[0] == x[0] ? x[0] : FloatOf(BitsOf(x[0]) | 0x400000u);
  }
};
struct ScaleF {
  float factor;
  EG_HD float operator()(const float* x, float) const { return factor * x[0]; }
};
struct AddScaledF {
  float factor;
  EG_HD float operator()(const float* x, float y) const { return y + factor * x[0]; }
};
struct MultiplyF {
  EG_HD float operator()(const float* x, float) const { return x[0] * x[1]; }
};

// Adds the inputs in one pass that reads each input once. If there are more inputs than one launch
// takes, memory holds the partial sum as float32, which costs 8 more bytes per element and launch.
template <typename X, typename Y>
struct SumMap {
  static constexpr int kWide = sizeof(X) == 2 && sizeof(Y) == 2 ? 8 : 4;
  EgSum a;
  bool wide;
  explicit SumMap(const EgSum& arguments)
      : a(arguments), wide(Aligned(a.y) && (a.before == nullptr || Aligned(a.before))) {
    for (int k = 0; k < a.count; ++k) wide = wide && Aligned(a.inputs[k]);
  }
  std::int64_t threads() const { return wide ? DivideUp(a.n, kWide) : a.n; }
  EG_HD void operator()(std::int64_t t) const {
    if (!wide) return Run<1>(t);
    const std::int64_t begin = kWide * t;
    if (begin + kWide <= a.n) return Run<kWide>(begin);
    for (std::int64_t i = begin; i < a.n; ++i) Run<1>(i);  // the tail
  }
  template <int kCount>
  EG_HD void Run(std::int64_t i) const {
    Pack<float, kCount> sum;
    if (a.before != nullptr) {
      sum = Load<kCount>(a.before + i);
    } else {
      const Pack<X, kCount> first = Load<kCount>(As<X>(a.inputs[0]) + i);
      for (int e = 0; e < kCount; ++e) sum.v[e] = static_cast<float>(first.v[e]);
    }
    for (int k = a.before != nullptr ? 0 : 1; k < a.count; ++k) {
      const Pack<X, kCount> more = Load<kCount>(As<X>(a.inputs[k]) + i);
      for (int e = 0; e < kCount; ++e) sum.v[e] = sum.v[e] + static_cast<float>(more.v[e]);
    }
    Pack<Y, kCount> y;
    for (int e = 0; e < kCount; ++e) y.v[e] = Y(sum.v[e]);
    Store<kCount>(As<Y>(a.y) + i, y);
  }
};

// Adds to each element of y the bias of the element's column, and applies the activation. The bias
// stays in the caches, so y is read once and written once. If rows consist of whole accesses of
// aligned memory, a thread processes as many columns as one access holds.
template <typename T>
struct BiasActivateMap {
  static constexpr int kWide = kAccess<T>;
  EgBiasActivate a;
  bool wide;
  explicit BiasActivateMap(const EgBiasActivate& arguments)
      : a(arguments),
        wide(a.columns % kWide == 0 && Aligned(a.y) && (a.bias == nullptr || Aligned(a.bias))) {}
  std::int64_t threads() const { return a.rows * a.columns / (wide ? kWide : 1); }
  EG_HD void operator()(std::int64_t t) const {
    if (wide)
      Run<kWide>(kWide * t);
    else
      Run<1>(t);
  }
  template <int kCount>
  EG_HD void Run(std::int64_t at) const {
    T* const to = As<T>(a.y) + at;
    Pack<T, kCount> y = Load<kCount>(to);
    Pack<float, kCount> b{};
    if (a.bias != nullptr) b = Load<kCount>(a.bias + Rest(at, a.columns));
    for (int e = 0; e < kCount; ++e) {
      const float x = static_cast<float>(y.v[e]);
      y.v[e] = T(Activated(a.activation, a.bias == nullptr ? x : x + b.v[e]));
    }
    Store<kCount>(to, y);
  }
};

// One Philox block is the mask of four elements, so a thread computes one block per four elements:
// 10 rounds of two 32-bit products per 32 bytes of float32 traffic. On an H100 the traffic still
// hides this arithmetic. Element i is word i % 4 of block i / 4, as in common/random/philox.h. The
// mask is the same as on the CPU, bit by bit.
template <typename T>
struct DropoutMap {
  static constexpr int kWide = kAccess<T>;
  EgDropout a;
  float scale;
  bool wide;
  explicit DropoutMap(const EgDropout& arguments)
      : a(arguments),
        scale(static_cast<float>(1.0 / (1.0 - arguments.rate))),
        wide(Aligned(arguments.x) && Aligned(arguments.y)) {}
  std::int64_t threads() const { return DivideUp(a.n, kWide); }
  EG_HD float One(std::uint32_t bits, float x) const {
    return static_cast<double>(UniformOf(bits)) >= a.rate ? x * scale : 0.0f;
  }
  EG_HD void operator()(std::int64_t t) const {
    const T* const from = As<T>(a.x);
    T* const to = As<T>(a.y);
    const std::int64_t begin = kWide * t;
    if (wide && begin + kWide <= a.n) {
      Pack<T, kWide> y = Load<kWide>(from + begin);
      for (int q = 0; q < kWide; q += 4) {
        const PhiloxBlock bits = Philox(a.key[0], static_cast<std::uint64_t>((begin + q) / 4));
        for (int e = 0; e < 4; ++e) y.v[q + e] = T(One(bits.v[e], static_cast<float>(y.v[q + e])));
      }
      Store<kWide>(to + begin, y);
      return;
    }
    for (std::int64_t quad = begin; quad < a.n && quad < begin + kWide; quad += 4) {
      const PhiloxBlock bits = Philox(a.key[0], static_cast<std::uint64_t>(quad / 4));
      for (std::int64_t i = quad; i < a.n && i < quad + 4; ++i)
        to[i] = T(One(bits.v[i - quad], from[i]));
    }
  }
};

// Threads run over the copied elements, or over pieces of 16 bytes if the whole array consists of
// such pieces. A narrow `width` causes short reads, which is a cost of the layout.
template <typename T>
struct CopyColumnsMap {
  EgCopyColumns a;
  EG_HD void operator()(std::int64_t i) const {
    const std::int64_t r = Quotient(i, a.width), c = Rest(i, a.width);
    As<T>(a.y)[r * a.y_columns + a.y_begin + c] = As<T>(a.x)[r * a.x_columns + a.x_begin + c];
  }
};

// Neighbouring threads write neighbouring elements, and their reads are `columns` apart, which
// causes at worst eight times the traffic of a tiled transpose. The transposed arrays are filters
// (HWIO to KRSC and back), of a few MB, and stay in the second-level cache (50 MB).
template <typename X, typename Y>
struct TransposeMap {
  EgTranspose a;
  EG_HD void operator()(std::int64_t i) const {
    const std::int64_t c = Quotient(i, a.rows), r = Rest(i, a.rows);
    As<Y>(a.y)[i] = Y(static_cast<float>(As<X>(a.x)[r * a.columns + c]));
  }
};

// Reads each element once. Only threads that find a non-finite element write the flag.
template <typename T>
struct NotFiniteMap {
  static constexpr int kWide = kAccess<T>;
  EgNotFinite a;
  bool wide;
  explicit NotFiniteMap(const EgNotFinite& arguments) : a(arguments), wide(Aligned(arguments.x)) {}
  std::int64_t threads() const { return wide ? DivideUp(a.n, kWide) : a.n; }
  EG_HD void operator()(std::int64_t t) const {
    if (!wide) return Run<1>(t);
    const std::int64_t begin = kWide * t;
    if (begin + kWide <= a.n) return Run<kWide>(begin);
    for (std::int64_t i = begin; i < a.n; ++i) Run<1>(i);
  }
  template <int kCount>
  EG_HD void Run(std::int64_t at) const {
    const Pack<T, kCount> values = Load<kCount>(As<T>(a.x) + at);
    bool found = false;
    for (int e = 0; e < kCount; ++e) {
      const float x = static_cast<float>(values.v[e]);
      found = found || !(x - x == 0.0f);
    }
    if (found) *a.found = 1;  // all threads write the same value
  }
};

}  // namespace evergrad::cuda
