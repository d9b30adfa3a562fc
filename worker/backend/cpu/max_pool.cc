#include "worker/backend/cpu/max_pool.h"

#include <algorithm>
#include <cstring>

#include "worker/backend/cpu/team.h"

namespace evergrad::worker::cpu {
namespace {

// The part of a window that lies inside the input.
struct Window {
  std::int64_t begin, end;
};
Window Clip(std::int64_t out, std::int64_t stride, std::int64_t pad, std::int64_t pool, std::int64_t in) {
  const std::int64_t begin = out * stride - pad;
  return {std::max<std::int64_t>(begin, 0), std::min(begin + pool, in)};
}

constexpr std::int64_t kRowsPerPart = 8;  // 8 rows of a small image are about the 10 µs that waking a thread costs

}  // namespace

void MaxPoolForward(int threads, const PoolShape& s, In x, Out y, std::span<std::int32_t> argmax) {
  ParallelFor(threads, s.batch * s.out_h, kRowsPerPart, [&](std::int64_t row_begin, std::int64_t row_end) {
    const std::int64_t channels = s.channels;
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const std::int64_t image = row / s.out_h;
      const Window h = Clip(row % s.out_h, s.stride_h, s.pad_top, s.pool_h, s.in_h);
      for (std::int64_t ox = 0; ox < s.out_w; ++ox) {
        const Window w = Clip(ox, s.stride_w, s.pad_left, s.pool_w, s.in_w);
        float* const best = y.data() + (row * s.out_w + ox) * channels;
        std::int32_t* const index = argmax.data() + (row * s.out_w + ox) * channels;
        bool first = true;
        for (std::int64_t iy = h.begin; iy < h.end; ++iy) {
          for (std::int64_t ix = w.begin; ix < w.end; ++ix) {
            const std::int64_t base = ((image * s.in_h + iy) * s.in_w + ix) * channels;
            const float* const values = x.data() + base;
            const std::int32_t base32 = static_cast<std::int32_t>(base);
            if (first) {
              for (std::int64_t c = 0; c < channels; ++c) {
                best[c] = values[c];
                index[c] = base32 + static_cast<std::int32_t>(c);
              }
              first = false;
              continue;
            }
            for (std::int64_t c = 0; c < channels; ++c) {
              const float value = values[c], old = best[c];
              // Strictly greater, so the first of equals stays; the first NaN wins and then stays.
              const bool take = (value > old) | ((value != value) & (old == old));
              best[c] = take ? value : old;
              index[c] = take ? base32 + static_cast<std::int32_t>(c) : index[c];
            }
          }
        }
      }
    }
  });
}

void MaxPoolBackward(int threads, const PoolShape& s, In dy, std::span<const std::int32_t> argmax, Out dx) {
  const std::int64_t image_in = s.in_h * s.in_w * s.channels, image_out = s.out_h * s.out_w * s.channels;
  // Windows that do not overlap give each input element at most one gradient: compare and store, in vectors, instead of scatter.
  const bool disjoint = s.stride_h >= s.pool_h && s.stride_w >= s.pool_w;
  // Every input element lies in a window, so storing covers dx and the clearing pass is not needed.
  const bool covered = disjoint && s.stride_h == s.pool_h && s.stride_w == s.pool_w && s.out_h * s.stride_h - s.pad_top >= s.in_h &&
                       s.out_w * s.stride_w - s.pad_left >= s.in_w;
  ParallelFor(threads, s.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t image = begin; image < end; ++image) {
      if (!covered) std::memset(dx.data() + image * image_in, 0, static_cast<std::size_t>(image_in) * sizeof(float));
      if (!disjoint) {
        for (std::int64_t i = image * image_out; i < (image + 1) * image_out; ++i) dx[static_cast<std::size_t>(argmax[i])] += dy[i];
        continue;
      }
      for (std::int64_t oy = 0; oy < s.out_h; ++oy) {
        const Window h = Clip(oy, s.stride_h, s.pad_top, s.pool_h, s.in_h);
        for (std::int64_t ox = 0; ox < s.out_w; ++ox) {
          const Window w = Clip(ox, s.stride_w, s.pad_left, s.pool_w, s.in_w);
          const std::int64_t out = ((image * s.out_h + oy) * s.out_w + ox) * s.channels;
          const float* const gradient = dy.data() + out;
          const std::int32_t* const index = argmax.data() + out;
          for (std::int64_t iy = h.begin; iy < h.end; ++iy) {
            for (std::int64_t ix = w.begin; ix < w.end; ++ix) {
              const std::int64_t base = ((image * s.in_h + iy) * s.in_w + ix) * s.channels;
              float* const target = dx.data() + base;
              const std::int32_t base32 = static_cast<std::int32_t>(base);
              for (std::int64_t c = 0; c < s.channels; ++c) target[c] = index[c] == base32 + static_cast<std::int32_t>(c) ? gradient[c] : 0.0f;
            }
          }
        }
      }
    }
  });
}

}  // namespace evergrad::worker::cpu
