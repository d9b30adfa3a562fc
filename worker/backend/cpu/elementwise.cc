#include "worker/backend/cpu/elementwise.h"

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "common/random/philox.h"
#include "worker/backend/cpu/team.h"

namespace evergrad::worker::cpu {
namespace {

constexpr std::int64_t kElementsPerPart = 16384;  // about the 10 µs that waking a thread costs

// Eigen's exp and tanh go through whole vectors of an aligned chunk, the last one padded: its scalar code for odd ends and
// unaligned starts gives other bits, and an element's bits must not depend on where it lies.
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

std::int64_t RowsPerPart(std::int64_t columns) { return std::max<std::int64_t>(1, kElementsPerPart / std::max<std::int64_t>(1, columns)); }

void SoftmaxRow(std::int64_t columns, const float* x, float* y) {
  float largest = x[0];
  for (std::int64_t c = 1; c < columns; ++c) largest = x[c] > largest ? x[c] : largest;
  MapChunks(columns, x, y, [largest](const Chunk& in) -> Chunk { return (in - largest).exp(); });  // a NaN spreads through the sum
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

void AddBias(int threads, std::int64_t rows, std::int64_t columns, In b, Out y) {
  ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
    const float* const bias = b.data();
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = y.data() + r * columns;
      for (std::int64_t c = 0; c < columns; ++c) row[c] += bias[c];
    }
  });
}

void ColumnSums(int threads, std::int64_t rows, std::int64_t columns, In x, Out sums) {
  ParallelFor(threads, columns, std::max<std::int64_t>(16, kElementsPerPart / std::max<std::int64_t>(1, rows)),
              [&](std::int64_t begin, std::int64_t end) {
                float* const out = sums.data();
                std::fill(out + begin, out + end, 0.0f);
                for (std::int64_t r = 0; r < rows; ++r) {
                  const float* const row = x.data() + r * columns;
                  for (std::int64_t c = begin; c < end; ++c) out[c] += row[c];
                }
              });
}

float LargestMagnitude(int threads, In x) {
  // Without its sign, a float's bits order as its magnitude does, with Inf and then NaN on top.
  std::atomic<std::uint32_t> largest{0};
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    const float* const values = x.data();
    std::uint32_t part = 0;
    for (std::int64_t i = begin; i < end; ++i) part = std::max(part, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
    std::uint32_t seen = largest.load(std::memory_order_relaxed);
    while (seen < part && !largest.compare_exchange_weak(seen, part, std::memory_order_relaxed)) {
    }
  });
  return std::bit_cast<float>(largest.load());
}

void ActivationForward(int threads, Activation a, std::int64_t rows, std::int64_t columns, In x, Out y) {
  if (a == Activation::kSoftmax) {
    ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) SoftmaxRow(columns, x.data() + r * columns, y.data() + r * columns);
    });
    return;
  }
  ParallelFor(threads, rows * columns, kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = end - begin;
    const float* const in = x.data() + begin;
    float* const out = y.data() + begin;
    switch (a) {
      case Activation::kLinear:
        if (in != out) std::copy(in, in + count, out);
        break;
      case Activation::kRelu:
        for (std::int64_t i = 0; i < count; ++i) out[i] = in[i] < 0.0f ? 0.0f : in[i];  // NaN stays NaN
        break;
      case Activation::kTanh:
        MapChunks(count, in, out, [](const Chunk& v) -> Chunk { return v.isNaN().select(v, v.tanh()); });  // tanh clamps, which loses NaN
        break;
      case Activation::kSigmoid: MapChunks(count, in, out, [](const Chunk& v) -> Chunk { return 1.0f / (1.0f + (-v).exp()); }); break;
      case Activation::kSoftmax: break;
    }
  });
}

void ActivationBackward(int threads, Activation a, std::int64_t rows, std::int64_t columns, In y, In dy, Out dx) {
  if (a == Activation::kSoftmax) {
    ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        SoftmaxRowBackward(columns, y.data() + r * columns, dy.data() + r * columns, dx.data() + r * columns);
    });
    return;
  }
  ParallelFor(threads, rows * columns, kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    const float* const value = y.data();
    const float* const gradient = dy.data();
    float* const out = dx.data();
    switch (a) {
      case Activation::kLinear:
        if (gradient != out) std::copy(gradient + begin, gradient + end, out + begin);
        break;
      case Activation::kRelu:
        for (std::int64_t i = begin; i < end; ++i) out[i] = value[i] > 0.0f ? gradient[i] : 0.0f;
        break;
      case Activation::kTanh:
        for (std::int64_t i = begin; i < end; ++i) out[i] = gradient[i] * (1.0f - value[i] * value[i]);
        break;
      case Activation::kSigmoid:
        for (std::int64_t i = begin; i < end; ++i) out[i] = gradient[i] * (value[i] * (1.0f - value[i]));
        break;
      case Activation::kSoftmax: break;
    }
  });
}

void Dropout(int threads, double rate, std::uint64_t key, In x, Out y) {
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  const float scale = static_cast<float>(1.0 / (1.0 - rate));
  // Uniform() is lane / 2^24 of 24 bits: rate is compared in those units, exactly.
  const double threshold = rate * 16777216.0;
  ParallelFor(threads, (n + 3) / 4, kElementsPerPart / 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const random::Block lanes = random::Philox(key, static_cast<std::uint64_t>(block), 0);
      const std::int64_t first = block * 4, count = std::min<std::int64_t>(4, n - first);
      for (std::int64_t i = 0; i < count; ++i) y[first + i] = static_cast<double>(lanes[i] >> 8) >= threshold ? x[first + i] * scale : 0.0f;
    }
  });
}

void Copy(int threads, In x, Out y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart,
              [&](std::int64_t begin, std::int64_t end) { std::copy(x.data() + begin, x.data() + end, y.data() + begin); });
}

void Scale(int threads, float factor, In x, Out y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    const float* const in = x.data();
    float* const out = y.data();
    for (std::int64_t i = begin; i < end; ++i) out[i] = factor * in[i];
  });
}

void AddScaled(int threads, float factor, In x, Out y) {
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    const float* const in = x.data();
    float* const out = y.data();
    for (std::int64_t i = begin; i < end; ++i) out[i] += factor * in[i];
  });
}

void Sum(int threads, std::span<const In> inputs, Out y) {
  ParallelFor(threads, static_cast<std::int64_t>(y.size()), kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    float* const out = y.data();
    std::copy(inputs[0].data() + begin, inputs[0].data() + end, out + begin);
    for (const In input : inputs.subspan(1)) {
      const float* const in = input.data();
      for (std::int64_t i = begin; i < end; ++i) out[i] += in[i];
    }
  });
}

void CopyColumns(int threads, std::int64_t rows, std::int64_t width, In x, std::int64_t x_columns, std::int64_t x_begin, Out y,
                 std::int64_t y_columns, std::int64_t y_begin) {
  ParallelFor(threads, rows, RowsPerPart(width), [&](std::int64_t begin, std::int64_t end) {
    const float* from = x.data() + begin * x_columns + x_begin;
    float* to = y.data() + begin * y_columns + y_begin;
    for (std::int64_t r = begin; r < end; ++r, from += x_columns, to += y_columns) std::copy_n(from, width, to);
  });
}

// In lanes, so that it vectorises with the same bits everywhere.
double SumOfSquares(In x) {
  constexpr std::size_t kLanesOfSum = 8;
  double lanes[kLanesOfSum] = {};
  std::size_t i = 0;
  for (; i + kLanesOfSum <= x.size(); i += kLanesOfSum) {
    for (std::size_t l = 0; l < kLanesOfSum; ++l) lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  }
  for (; i < x.size(); ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

bool AllFinite(int threads, In x) {
  std::atomic<bool> finite{true};
  ParallelFor(threads, static_cast<std::int64_t>(x.size()), 4 * kElementsPerPart, [&](std::int64_t begin, std::int64_t end) {
    // An exponent of all ones is Inf or NaN. In blocks, so that it vectorises and still ends early.
    constexpr std::int64_t kBlock = 4096;
    for (std::int64_t from = begin; from < end; from += kBlock) {
      const float* const values = x.data();
      const std::int64_t to = std::min(end, from + kBlock);
      std::uint32_t bad = 0;
      for (std::int64_t i = from; i < to; ++i) bad |= (std::bit_cast<std::uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
      if (bad == 0) continue;
      finite.store(false, std::memory_order_relaxed);
      return;
    }
  });
  return finite.load();
}

}  // namespace evergrad::worker::cpu
