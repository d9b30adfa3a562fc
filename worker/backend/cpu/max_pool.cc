#include "worker/backend/cpu/max_pool.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "worker/backend/cpu/team.h"
#include "worker/backend/cpu/wide.h"

namespace evergrad::worker::cpu {
namespace {

// The part of a window that lies inside the input.
struct Window {
  std::int64_t begin, end;
};
Window Clip(std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t pool,
            std::int64_t in) {
  const std::int64_t begin = out * stride - pad;
  return {std::max<std::int64_t>(begin, 0), std::min(begin + pool, in)};
}

// Eight rows of a small image take about 10 µs, which is also the time to wake a thread.
constexpr std::int64_t kRowsPerPart = 8;

// The loops process eight channels at once, in the compilers' vector types. The running maximum and
// its index stay in registers over a window.
constexpr std::int64_t kLanes = 8;
using Floats = float __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));
constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7};

template <typename Vector, typename Element>
Vector Load(const Element* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
template <typename Vector, typename Element>
void Store(const Vector& vector, Element* to) {
  std::memcpy(to, &vector, sizeof vector);
}

// Returns the index of the first channel of the input pixel (y, x).
std::int64_t Pixel(const PoolShape& s, std::int64_t image, std::int64_t y, std::int64_t x) {
  return ((image * s.in_h + y) * s.in_w + x) * s.channels;
}

void ForwardFloats(int threads, const PoolShape& s, In x, Out y, std::span<std::int32_t> argmax) {
  const std::int64_t row_step = s.in_w * s.channels;
  ParallelFor(
      threads, s.batch * s.out_h, kRowsPerPart, [&](std::int64_t row_begin, std::int64_t row_end) {
        for (std::int64_t row = row_begin; row < row_end; ++row) {
          const std::int64_t image = row / s.out_h;
          const Window h = Clip(row % s.out_h, s.stride_h, s.pad_top, s.pool_h, s.in_h);
          for (std::int64_t ox = 0; ox < s.out_w; ++ox) {
            const Window w = Clip(ox, s.stride_w, s.pad_left, s.pool_w, s.in_w);
            float* const best_to = y.data() + (row * s.out_w + ox) * s.channels;
            std::int32_t* const index_to = argmax.data() + (row * s.out_w + ox) * s.channels;
            const std::int64_t first = Pixel(s, image, h.begin, w.begin),
                               width = (w.end - w.begin) * s.channels;
            std::int64_t c = 0;
            // The comparison "strictly greater" keeps the first of equal values, and a NaN replaces
            // the maximum once.
            for (; c + kLanes <= s.channels; c += kLanes) {
              Floats best = Load<Floats>(x.data() + first + c);
              Ints pixel = Ints{} + static_cast<std::int32_t>(first);
              for (std::int64_t row_at = first, rows = h.end - h.begin; rows > 0;
                   --rows, row_at += row_step) {
                for (std::int64_t at = row_at, end = row_at + width; at < end; at += s.channels) {
                  const Floats value = Load<Floats>(x.data() + at + c);
                  const Ints take = (value > best) | ((value != value) & (best == best));
                  best = take ? value : best;
                  pixel = take ? Ints{} + static_cast<std::int32_t>(at) : pixel;
                }
              }
              Store(best, best_to + c);
              Store(pixel + kLane + static_cast<std::int32_t>(c), index_to + c);
            }
            for (; c < s.channels; ++c) {
              float best = x[static_cast<std::size_t>(first + c)];
              std::int64_t index = first + c;
              for (std::int64_t row_at = first + c, rows = h.end - h.begin; rows > 0;
                   --rows, row_at += row_step) {
                for (std::int64_t at = row_at, end = row_at + width; at < end; at += s.channels) {
                  const float value = x[static_cast<std::size_t>(at)];
                  if (value > best || (value != value && best == best)) best = value, index = at;
                }
              }
              best_to[c] = best;
              index_to[c] = static_cast<std::int32_t>(index);
            }
          }
        }
      });
}

void BackwardFloats(int threads, const PoolShape& s, In dy, std::span<const std::int32_t> argmax,
                    Out dx) {
  const std::int64_t row_step = s.in_w * s.channels, image_in = s.in_h * row_step,
                     image_out = s.out_h * s.out_w * s.channels;
  // If windows do not overlap, each input element gets at most one gradient. A vectorized
  // comparison and store then replaces the scatter.
  const bool disjoint = s.stride_h >= s.pool_h && s.stride_w >= s.pool_w;
  // If every input element lies in a window, the stores overwrite all of dx, and dx need not be
  // cleared first.
  const bool covered = disjoint && s.stride_h == s.pool_h && s.stride_w == s.pool_w &&
                       s.out_h * s.stride_h - s.pad_top >= s.in_h &&
                       s.out_w * s.stride_w - s.pad_left >= s.in_w;
  ParallelFor(threads, s.batch, 1, [&](std::int64_t image_begin, std::int64_t image_end) {
    for (std::int64_t image = image_begin; image < image_end; ++image) {
      if (!covered)
        std::memset(dx.data() + image * image_in, 0,
                    static_cast<std::size_t>(image_in) * sizeof(float));
      if (!disjoint) {
        for (std::int64_t i = image * image_out; i < (image + 1) * image_out; ++i)
          dx[static_cast<std::size_t>(argmax[i])] += dy[i];
        continue;
      }
      for (std::int64_t oy = 0; oy < s.out_h; ++oy) {
        const Window h = Clip(oy, s.stride_h, s.pad_top, s.pool_h, s.in_h);
        for (std::int64_t ox = 0; ox < s.out_w; ++ox) {
          const Window w = Clip(ox, s.stride_w, s.pad_left, s.pool_w, s.in_w);
          const std::int64_t out = ((image * s.out_h + oy) * s.out_w + ox) * s.channels;
          const std::int64_t first = Pixel(s, image, h.begin, w.begin),
                             width = (w.end - w.begin) * s.channels;
          std::int64_t c = 0;
          for (; c + kLanes <= s.channels; c += kLanes) {
            const Ints pixel =
                Load<Ints>(argmax.data() + out + c) - kLane - static_cast<std::int32_t>(c);
            const Floats gradient = Load<Floats>(dy.data() + out + c);
            for (std::int64_t row_at = first, rows = h.end - h.begin; rows > 0;
                 --rows, row_at += row_step) {
              for (std::int64_t at = row_at, end = row_at + width; at < end; at += s.channels) {
                Store(pixel == Ints{} + static_cast<std::int32_t>(at) ? gradient : Floats{},
                      dx.data() + at + c);
              }
            }
          }
          for (; c < s.channels; ++c) {
            for (std::int64_t row_at = first + c, rows = h.end - h.begin; rows > 0;
                 --rows, row_at += row_step) {
              for (std::int64_t at = row_at, end = row_at + width; at < end; at += s.channels) {
                dx[static_cast<std::size_t>(at)] = argmax[static_cast<std::size_t>(out + c)] == at
                                                       ? dy[static_cast<std::size_t>(out + c)]
                                                       : 0.0f;
              }
            }
          }
        }
      }
    }
  });
}

// Returns the shape for a batch of one.
PoolShape ImageOf(PoolShape s) {
  s.batch = 1;
  return s;
}

}  // namespace

// 16-bit elements are processed image by image as float32, so that gradients of overlapping windows
// are added in float32. Indices into one image are converted to and from indices into the batch.
void MaxPoolForward(int threads, const PoolShape& s, AnyIn x, AnyOut y,
                    std::span<std::int32_t> argmax) {
  if (x.is_float32()) return ForwardFloats(threads, s, x.floats(), y.floats(), argmax);
  const std::int64_t image_in = s.in_h * s.in_w * s.channels,
                     image_out = s.out_h * s.out_w * s.channels;
  const std::size_t in_size = static_cast<std::size_t>(image_in),
                    out_size = static_cast<std::size_t>(image_out);
  ParallelFor(threads, s.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    WideIn in(x);
    WideOut out(y);
    for (std::int64_t n = begin; n < end; ++n) {
      const std::span<std::int32_t> index =
          argmax.subspan(static_cast<std::size_t>(n) * out_size, out_size);
      ForwardFloats(1, ImageOf(s), {in.Load(n * image_in, image_in), in_size},
                    {out.At(n * image_out, image_out), out_size}, index);
      out.Store();
      for (std::int32_t& i : index) i += static_cast<std::int32_t>(n * image_in);
    }
  });
}

void MaxPoolBackward(int threads, const PoolShape& s, AnyIn dy,
                     std::span<const std::int32_t> argmax, AnyOut dx) {
  if (dy.is_float32()) return BackwardFloats(threads, s, dy.floats(), argmax, dx.floats());
  const std::int64_t image_in = s.in_h * s.in_w * s.channels,
                     image_out = s.out_h * s.out_w * s.channels;
  const std::size_t in_size = static_cast<std::size_t>(image_in),
                    out_size = static_cast<std::size_t>(image_out);
  ParallelFor(threads, s.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    WideIn in(dy);
    WideOut out(dx);
    std::vector<std::int32_t> index(out_size);
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::size_t i = 0; i < out_size; ++i)
        index[i] = argmax[static_cast<std::size_t>(n) * out_size + i] -
                   static_cast<std::int32_t>(n * image_in);
      BackwardFloats(1, ImageOf(s), {in.Load(n * image_out, image_out), out_size}, index,
                     {out.At(n * image_in, image_in), in_size});
      out.Store();
    }
  });
}

}  // namespace evergrad::worker::cpu
