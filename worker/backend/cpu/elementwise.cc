#include "worker/backend/cpu/elementwise.h"

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "common/random/philox.h"
#include "worker/backend/cpu/team.h"
#include "worker/backend/cpu/wide.h"

namespace evergrad::worker::cpu {
namespace {

// The number of elements in one part of the work. A part takes about 10 µs, which is also the time
// to wake a thread.
constexpr std::int64_t kElementsPerPart = 16384;

// Eigen's exp and tanh process whole vectors of an aligned chunk; the last chunk is padded. For the
// ends of arrays, Eigen would use scalar code, which gives other bits. An element's bits must not
// depend on its position.
constexpr std::int64_t kChunk = 16;
using Chunk = Eigen::Array<float, kChunk, 1>;

template <typename Function>
void MapChunks(std::int64_t n, const float* x, float* y, Function function) {
  for (std::int64_t i = 0; i < n; i += kChunk) {
    const std::size_t count = static_cast<std::size_t>(std::min(kChunk, n - i));
    Chunk in = Chunk::Zero();
    std::memcpy(in.data(), x + i, count * sizeof(float));
    const Chunk out = function(in);
    std::memcpy(y + i, out.data(), count * sizeof(float));
  }
}

std::int64_t RowsPerPart(std::int64_t columns) {
  return std::max<std::int64_t>(1, kElementsPerPart / std::max<std::int64_t>(1, columns));
}

void SoftmaxRow(std::int64_t columns, const float* x, float* y) {
  float largest = x[0];
  for (std::int64_t c = 1; c < columns; ++c) largest = x[c] > largest ? x[c] : largest;
  MapChunks(columns, x, y, [largest](const Chunk& in) -> Chunk {
    return (in - largest).exp();
  });  // NaN propagates through the sum
  double sum = 0;
  for (std::int64_t c = 0; c < columns; ++c) sum += y[c];
  const float scale = static_cast<float>(1.0 / sum);
  for (std::int64_t c = 0; c < columns; ++c) y[c] *= scale;
}

void SoftmaxRowBackward(std::int64_t columns, const float* y, const float* dy, float* dx) {
  double dot = 0;
  for (std::int64_t c = 0; c < columns; ++c) dot += static_cast<double>(dy[c]) * y[c];
  const float mean = static_cast<float>(dot);
  for (std::int64_t c = 0; c < columns; ++c) dx[c] = y[c] * (dy[c] - mean);
}

}  // namespace

void AddBias(int threads, std::int64_t rows, std::int64_t columns, In b, AnyOut y) {
  ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
    const float* const bias = b.data();
    WideOut out(y);
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = out.Load(r * columns, columns);
      for (std::int64_t c = 0; c < columns; ++c) row[c] += bias[c];
      out.Store();
    }
  });
}

void ColumnSums(int threads, std::int64_t rows, std::int64_t columns, AnyIn x, Out sums) {
  ParallelFor(threads, columns,
              std::max<std::int64_t>(16, kElementsPerPart / std::max<std::int64_t>(1, rows)),
              [&](std::int64_t begin, std::int64_t end) {
                float* const out = sums.data() + begin;
                std::fill(out, out + (end - begin), 0.0f);
                WideIn in(x);
                for (std::int64_t r = 0; r < rows; ++r) {
                  const float* const row = in.Load(r * columns + begin, end - begin);
                  for (std::int64_t c = 0; c < end - begin; ++c) out[c] += row[c];
                }
              });
}

float LargestMagnitude(int threads, In x) {
  // Without their sign bits, the bit patterns of floats have the order of their magnitudes, and Inf
  // and then NaN are above all numbers.
  std::atomic<std::uint32_t> largest{0};
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                const float* const values = x.data();
                std::uint32_t part = 0;
                for (std::int64_t i = begin; i < end; ++i)
                  part = std::max(part, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
                std::uint32_t seen = largest.load(std::memory_order_relaxed);
                while (seen < part &&
                       !largest.compare_exchange_weak(seen, part, std::memory_order_relaxed)) {
                }
              });
  return std::bit_cast<float>(largest.load());
}

void ActivationForward(int threads, Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                       AnyOut y) {
  if (a == Activation::kSoftmax) {
    ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
      WideIn in(x);
      WideOut out(y);
      for (std::int64_t r = begin; r < end; ++r) {
        SoftmaxRow(columns, in.Load(r * columns, columns), out.At(r * columns, columns));
        out.Store();
      }
    });
    return;
  }
  ParallelFor(threads, rows * columns, kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    WideIn wide_in(x);
    WideOut wide_out(y);
    ForPieces(x.is_float32() && y.is_float32(), begin, end,
              [&](std::int64_t at, std::int64_t count) {
                const float* const in = wide_in.Load(at, count);
                float* const out = wide_out.At(at, count);
                switch (a) {
                  case Activation::kLinear:
                    if (in != out) std::copy(in, in + count, out);
                    break;
                  case Activation::kRelu:
                    // NaN stays NaN.
                    for (std::int64_t i = 0; i < count; ++i) out[i] = in[i] < 0.0f ? 0.0f : in[i];
                    break;
                  case Activation::kTanh:
                    MapChunks(count, in, out, [](const Chunk& v) -> Chunk {
                      return v.isNaN().select(v, v.tanh());
                    });  // tanh clamps and would lose NaN
                    break;
                  case Activation::kSigmoid:
                    MapChunks(count, in, out,
                              [](const Chunk& v) -> Chunk { return 1.0f / (1.0f + (-v).exp()); });
                    break;
                  case Activation::kSoftmax: break;
                }
                wide_out.Store();
              });
  });
}

void ActivationBackward(int threads, Activation a, std::int64_t rows, std::int64_t columns, AnyIn y,
                        AnyIn dy, AnyOut dx) {
  if (a == Activation::kSoftmax) {
    ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
      WideIn value(y), gradient(dy);
      WideOut out(dx);
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t at = r * columns;
        SoftmaxRowBackward(columns, value.Load(at, columns), gradient.Load(at, columns),
                           out.At(at, columns));
        out.Store();
      }
    });
    return;
  }
  ParallelFor(threads, rows * columns, kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    WideIn wide_value(a == Activation::kLinear ? AnyIn() : y), wide_gradient(dy);
    WideOut wide_out(dx);
    ForPieces(dy.is_float32() && dx.is_float32(), begin, end,
              [&](std::int64_t at, std::int64_t count) {
                const float* const value =
                    a == Activation::kLinear ? nullptr : wide_value.Load(at, count);
                const float* const gradient = wide_gradient.Load(at, count);
                float* const out = wide_out.At(at, count);
                switch (a) {
                  case Activation::kLinear:
                    if (gradient != out) std::copy(gradient, gradient + count, out);
                    break;
                  case Activation::kRelu:
                    for (std::int64_t i = 0; i < count; ++i) {
                      const float at_zero = value[i] == value[i] ? 0.0f : value[i];  // or NaN
                      out[i] = value[i] > 0.0f ? gradient[i] : at_zero;
                    }
                    break;
                  case Activation::kTanh:
                    for (std::int64_t i = 0; i < count; ++i)
                      out[i] = gradient[i] * (1.0f - value[i] * value[i]);
                    break;
                  case Activation::kSigmoid:
                    for (std::int64_t i = 0; i < count; ++i)
                      out[i] = gradient[i] * (value[i] * (1.0f - value[i]));
                    break;
                  case Activation::kSoftmax: break;
                }
                wide_out.Store();
              });
  });
}

void Dropout(int threads, double rate, std::uint64_t key, AnyIn x, AnyOut y) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  const float scale = static_cast<float>(1.0 / (1.0 - rate));
  // Uniform() is a 24-bit word / 2^24, so the comparison with the rate, in units of 2^-24, is
  // exact.
  const double threshold = rate * 16777216.0;
  ParallelFor(
      threads, (n + 3) / 4, kElementsPerPart / 16, [&](std::int64_t begin, std::int64_t end) {
        WideIn wide_in(x);
        WideOut wide_out(y);
        ForPieces(x.is_float32(), begin, end, [&](std::int64_t first_block, std::int64_t blocks) {
          const std::int64_t from = first_block * 4,
                             size = std::min(n, (first_block + blocks) * 4) - from;
          const float* const in = wide_in.Load(from, size);
          float* const out = wide_out.At(from, size);
          for (std::int64_t first = 0; first < size; first += 4) {
            const random::Block lanes =
                random::Philox(key, static_cast<std::uint64_t>(first_block + first / 4), 0);
            const std::int64_t count = std::min<std::int64_t>(4, size - first);
            for (std::int64_t i = 0; i < count; ++i)
              out[first + i] =
                  static_cast<double>(lanes[static_cast<std::size_t>(i)] >> 8) >= threshold
                      ? in[first + i] * scale
                      : 0.0f;
          }
          wide_out.Store();
        });
      });
}

void Copy(int threads, AnyIn x, AnyOut y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                if (x.type() == y.type()) {
                  const std::int64_t bytes = static_cast<std::int64_t>(BytesOf(x.type()));
                  std::memcpy(static_cast<std::byte*>(y.data()) + begin * bytes,
                              static_cast<const std::byte*>(x.data()) + begin * bytes,
                              static_cast<std::size_t>((end - begin) * bytes));
                  return;
                }
                WideIn wide_in(x);
                ForPieces(false, begin, end, [&](std::int64_t at, std::int64_t count) {
                  tensor::Narrow(ToWire(y.type()), wide_in.Load(at, count),
                                 static_cast<std::size_t>(count),
                                 static_cast<std::byte*>(y.data()) +
                                     at * static_cast<std::int64_t>(BytesOf(y.type())));
                });
              });
}

void Scale(int threads, float factor, In x, Out y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                const float* const in = x.data();
                float* const out = y.data();
                for (std::int64_t i = begin; i < end; ++i) out[i] = factor * in[i];
              });
}

void AddScaled(int threads, float factor, AnyIn x, AnyOut y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                WideIn wide_in(x);
                WideOut wide_out(y);
                ForPieces(x.is_float32() && y.is_float32(), begin, end,
                          [&](std::int64_t at, std::int64_t count) {
                            const float* const in = wide_in.Load(at, count);
                            float* const out = wide_out.Load(at, count);
                            for (std::int64_t i = 0; i < count; ++i) out[i] += factor * in[i];
                            wide_out.Store();
                          });
              });
}

void Sum(int threads, std::span<const AnyIn> inputs, AnyOut y) {
  ParallelFor(threads, static_cast<std::int64_t>(y.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                std::vector<WideIn> wide_ins(inputs.begin(), inputs.end());
                WideOut wide_out(y);
                ForPieces(y.is_float32(), begin, end, [&](std::int64_t at, std::int64_t count) {
                  float* const out = wide_out.At(at, count);
                  const float* const first = wide_ins[0].Load(at, count);
                  std::copy(first, first + count, out);
                  for (std::size_t k = 1; k < wide_ins.size(); ++k) {
                    const float* const in = wide_ins[k].Load(at, count);
                    for (std::int64_t i = 0; i < count; ++i) out[i] += in[i];
                  }
                  wide_out.Store();
                });
              });
}

void Multiply(int threads, AnyIn a, AnyIn b, AnyOut y) {
  ParallelFor(threads, static_cast<std::int64_t>(y.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                WideIn wide_a(a), wide_b(b);
                WideOut wide_out(y);
                ForPieces(y.is_float32(), begin, end, [&](std::int64_t at, std::int64_t count) {
                  const float* const x = wide_a.Load(at, count);
                  const float* const z = wide_b.Load(at, count);
                  float* const out = wide_out.At(at, count);
                  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] * z[i];
                  wide_out.Store();
                });
              });
}

void CopyColumns(int threads, std::int64_t rows, std::int64_t width, AnyIn x,
                 std::int64_t x_columns, std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                 std::int64_t y_begin) {
  const std::int64_t bytes = static_cast<std::int64_t>(BytesOf(x.type()));
  ParallelFor(threads, rows, RowsPerPart(width), [&](std::int64_t begin, std::int64_t end) {
    const std::byte* from =
        static_cast<const std::byte*>(x.data()) + (begin * x_columns + x_begin) * bytes;
    std::byte* to = static_cast<std::byte*>(y.data()) + (begin * y_columns + y_begin) * bytes;
    for (std::int64_t r = begin; r < end; ++r, from += x_columns * bytes, to += y_columns * bytes)
      std::copy_n(from, width * bytes, to);
  });
}

// Uses several partial sums, so that the loop vectorizes and gives the same bits on every CPU.
double SumOfSquares(In x) {
  constexpr std::size_t kLanesOfSum = 8;
  double lanes[kLanesOfSum] = {};
  std::size_t i = 0;
  for (; i + kLanesOfSum <= x.size(); i += kLanesOfSum) {
    for (std::size_t l = 0; l < kLanesOfSum; ++l)
      lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  }
  for (std::size_t l = 0; i < x.size(); ++i, ++l) lanes[l] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

bool AllFinite(int threads, AnyIn x) {
  std::atomic<bool> finite{true};
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), 4 * kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) {
                // An exponent of all ones is Inf or NaN. The loop works in blocks, so that it
                // vectorizes and still ends early.
                constexpr std::int64_t kBlock = 4096;
                for (std::int64_t from = begin; from < end; from += kBlock) {
                  const AnyIn block =
                      x.subspan(static_cast<std::size_t>(from),
                                static_cast<std::size_t>(std::min(end, from + kBlock) - from));
                  if (tensor::AllFinite(ToWire(block.type()),
                                        static_cast<const std::byte*>(block.data()), block.size()))
                    continue;
                  finite.store(false, std::memory_order_relaxed);
                  return;
                }
              });
  return finite.load();
}

}  // namespace evergrad::worker::cpu
