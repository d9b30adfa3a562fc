// Pooling, and padding of images. Threads run over channels first, NHWC's innermost dimension, so
// that neighbouring threads read neighbouring elements.
#pragma once

#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/element.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

struct Span {
  std::int64_t begin, end;
};
// Returns the part of output `out`'s window that lies inside the input.
EG_HD Span WindowOf(std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t pool,
                    std::int64_t in) {
  const std::int64_t begin = out * stride - pad;
  return {Most(begin, 0), Least(begin + pool, in)};
}
// Returns the outputs whose windows contain input `at`.
EG_HD Span WindowsOver(std::int64_t at, std::int64_t stride, std::int64_t pad, std::int64_t pool,
                       std::int64_t outs) {
  const std::int64_t first = at + pad - pool + 1;
  return {first <= 0 ? 0 : Quotient(first + stride - 1, stride),
          Least(Quotient(at + pad, stride) + 1, outs)};
}

// Pads or crops images. The common part is read once and written once; the rest is zero. If the
// channels of a position fill whole accesses of 16 bytes and the arrays are aligned, a thread
// processes one access, and otherwise one element.
template <typename T>
struct PadMap {
  static constexpr int kWide = 16 / sizeof(T);
  using Piece = Pack<T, kWide>;
  EgPad a;
  bool wide;
  explicit PadMap(const EgPad& arguments)
      : a(arguments), wide(a.channels % kWide == 0 && Aligned(a.x) && Aligned(a.y)) {}
  std::int64_t threads() const {
    return a.batch * a.out_h * a.out_w * a.channels / (wide ? kWide : 1);
  }
  EG_HD void operator()(std::int64_t t) const {
    const std::int64_t pieces = wide ? a.channels / kWide : a.channels;
    const std::int64_t c = Rest(t, pieces), pixel = Quotient(t, pieces),
                       row = Quotient(pixel, a.out_w), image = Quotient(row, a.out_h);
    const std::int64_t h = Rest(row, a.out_h) - a.top, w = Rest(pixel, a.out_w) - a.left;
    const bool inside = h >= 0 && h < a.in_h && w >= 0 && w < a.in_w;
    const std::int64_t from = ((image * a.in_h + h) * a.in_w + w) * pieces + c;
    if (wide)
      As<Piece>(a.y)[t] = inside ? As<Piece>(a.x)[from] : Piece{};
    else
      As<T>(a.y)[t] = inside ? As<T>(a.x)[from] : T(0.0f);
  }
};

// Each window is read once, from memory or (if windows overlap) the first-level cache. Two arrays
// are written. If the channels of a position fill whole accesses of 16 bytes and the arrays are
// aligned, a thread processes the channels of one access, so the window is computed once for all of
// these channels.
template <typename T>
struct MaxPoolMap {
  static constexpr int kWide = kAccess<T>;
  EgMaxPool a;
  bool wide;
  explicit MaxPoolMap(const EgMaxPool& arguments)
      : a(arguments),
        wide(a.s.channels % kWide == 0 && Aligned(a.x) && Aligned(a.y) && Aligned(a.argmax)) {}
  std::int64_t threads() const {
    return a.s.batch * a.s.out_h * a.s.out_w * a.s.channels / (wide ? kWide : 1);
  }
  EG_HD void operator()(std::int64_t t) const {
    if (wide)
      Run<kWide>(t);
    else
      Run<1>(t);
  }
  template <int kCount>
  EG_HD void Run(std::int64_t t) const {
    const EgPoolShape& s = a.s;
    const std::int64_t pieces = Quotient(s.channels, kCount), c = Rest(t, pieces) * kCount,
                       pixel = Quotient(t, pieces);
    const std::int64_t image = Quotient(pixel, s.out_h * s.out_w);
    const Span h =
        WindowOf(Rest(Quotient(pixel, s.out_w), s.out_h), s.stride_h, s.pad_top, s.pool_h, s.in_h);
    const Span w = WindowOf(Rest(pixel, s.out_w), s.stride_w, s.pad_left, s.pool_w, s.in_w);
    const std::int64_t first = ((image * s.in_h + h.begin) * s.in_w + w.begin) * s.channels + c;
    Pack<T, kCount> best = Load<kCount>(As<T>(a.x) + first);
    Pack<std::int32_t, kCount> index;
    for (int e = 0; e < kCount; ++e) index.v[e] = static_cast<std::int32_t>(first + e);
    for (std::int64_t y = h.begin; y < h.end; ++y)
      for (std::int64_t x = w.begin; x < w.end; ++x) {
        const std::int64_t at = ((image * s.in_h + y) * s.in_w + x) * s.channels + c;
        const Pack<T, kCount> values = Load<kCount>(As<T>(a.x) + at);
        for (int e = 0; e < kCount; ++e) {
          const float value = static_cast<float>(values.v[e]),
                      so_far = static_cast<float>(best.v[e]);
          // The comparison "strictly greater" keeps the first of equal values, and a NaN replaces
          // the maximum once.
          if (value > so_far || (value != value && so_far == so_far))
            best.v[e] = values.v[e], index.v[e] = static_cast<std::int32_t>(at + e);
        }
      }
    const std::int64_t to = pixel * s.channels + c;
    Store<kCount>(As<T>(a.y) + to, best);
    Store<kCount>(a.argmax + to, index);
  }
};

// A thread gathers the gradients of one input (or of the channels of an access), in the order of
// the outputs. The kernel uses no atomics, so the bits are fixed. A thread reads the argmax of each
// window over its input; there is one window if windows do not overlap.
template <typename T>
struct MaxPoolBackMap {
  static constexpr int kWide = kAccess<T>;
  EgMaxPoolBack a;
  bool wide;
  explicit MaxPoolBackMap(const EgMaxPoolBack& arguments)
      : a(arguments),
        wide(a.s.channels % kWide == 0 && Aligned(a.dy) && Aligned(a.dx) && Aligned(a.argmax)) {}
  std::int64_t threads() const {
    return a.s.batch * a.s.in_h * a.s.in_w * a.s.channels / (wide ? kWide : 1);
  }
  EG_HD void operator()(std::int64_t t) const {
    if (wide)
      Run<kWide>(t);
    else
      Run<1>(t);
  }
  template <int kCount>
  EG_HD void Run(std::int64_t t) const {
    const EgPoolShape& s = a.s;
    const std::int64_t pieces = Quotient(s.channels, kCount), c = Rest(t, pieces) * kCount,
                       pixel = Quotient(t, pieces);
    const std::int64_t image = Quotient(pixel, s.in_h * s.in_w), to = pixel * s.channels + c;
    const Span h = WindowsOver(Rest(Quotient(pixel, s.in_w), s.in_h), s.stride_h, s.pad_top,
                               s.pool_h, s.out_h);
    const Span w = WindowsOver(Rest(pixel, s.in_w), s.stride_w, s.pad_left, s.pool_w, s.out_w);
    float sums[kCount] = {};
    for (std::int64_t y = h.begin; y < h.end; ++y)
      for (std::int64_t x = w.begin; x < w.end; ++x) {
        const std::int64_t at = ((image * s.out_h + y) * s.out_w + x) * s.channels + c;
        const Pack<T, kCount> dy = Load<kCount>(As<T>(a.dy) + at);
        const Pack<std::int32_t, kCount> from = Load<kCount>(a.argmax + at);
        for (int e = 0; e < kCount; ++e)
          if (from.v[e] == to + e) sums[e] += static_cast<float>(dy.v[e]);
      }
    Pack<T, kCount> dx;
    for (int e = 0; e < kCount; ++e) dx.v[e] = T(sums[e]);
    Store<kCount>(As<T>(a.dx) + to, dx);
  }
};

// A thread adds the positions of one channel of one image. Each element is read once, in rows of
// `channels`.
template <typename T>
struct AveragePoolMap {
  EgAveragePool a;
  EG_HD void operator()(std::int64_t t) const {
    const std::int64_t c = Rest(t, a.channels), image = Quotient(t, a.channels);
    const T* const x = As<T>(a.x) + image * a.positions * a.channels + c;
    double sum = 0;
    for (std::int64_t p = 0; p < a.positions; ++p) sum += static_cast<double>(x[p * a.channels]);
    As<T>(a.y)[t] = T(static_cast<float>(sum / static_cast<double>(a.positions)));
  }
};
template <typename T>
struct AveragePoolBackMap {
  EgAveragePoolBack a;
  EG_HD void operator()(std::int64_t t) const {
    const std::int64_t c = Rest(t, a.channels),
                       image = Quotient(Quotient(t, a.channels), a.positions);
    As<T>(a.dx)[t] = T(As<T>(a.dy)[image * a.channels + c] *
                       static_cast<float>(1.0 / static_cast<double>(a.positions)));
  }
};

}  // namespace evergrad::cuda
