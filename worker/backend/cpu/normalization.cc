#include "worker/backend/cpu/normalization.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "worker/backend/cpu/team.h"
#include "worker/backend/cpu/wide.h"

namespace evergrad::worker::cpu {
namespace {

constexpr std::int64_t kElementsPerPart = 16384;  // as in elementwise.cc
// The number of elements in one partial sum. The number is fixed, because another division would
// change the bits.
constexpr std::int64_t kElementsPerBlock = 65536;

// Returns the sums [k][c], over the rows, of the values that `visit(row, the row of each input,
// block sums)` adds. Blocks are summed in parallel and then added in order.
template <int kSums, std::size_t kInputs, typename Visit>
std::vector<double> SumRows(int threads, std::int64_t rows, std::int64_t channels,
                            const std::array<AnyIn, kInputs>& inputs, Visit visit) {
  const std::int64_t per_block = std::max<std::int64_t>(1, kElementsPerBlock / channels);
  const std::int64_t blocks = (rows + per_block - 1) / per_block;
  const std::size_t width = static_cast<std::size_t>(kSums * channels);
  std::vector<double> parts(width * static_cast<std::size_t>(blocks));
  ParallelFor(threads, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<WideIn> wide(inputs.begin(), inputs.end());
    std::array<const float*, kInputs> row_of;
    for (std::int64_t block = begin; block < end; ++block) {
      double* const sums = parts.data() + static_cast<std::size_t>(block) * width;
      for (std::int64_t row = block * per_block; row < std::min(rows, (block + 1) * per_block);
           ++row) {
        for (std::size_t i = 0; i < kInputs; ++i)
          row_of[i] = wide[i].Load(row * channels, channels);
        visit(row, row_of, sums);
      }
    }
  });
  for (std::int64_t block = 1; block < blocks; ++block) {
    const double* const more = parts.data() + static_cast<std::size_t>(block) * width;
    for (std::size_t i = 0; i < width; ++i) parts[i] += more[i];
  }
  parts.resize(width);
  return parts;
}

std::int64_t RowsPerPart(std::int64_t columns) {
  return std::max<std::int64_t>(1, kElementsPerPart / columns);
}

float InverseDeviation(float variance, double epsilon) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(variance) + epsilon));
}

// Computes y = scale x + shift for each channel.
void ScaleAndShift(int threads, std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                   In gamma, In beta, In mean, In variance, AnyOut y) {
  std::vector<float> scale(static_cast<std::size_t>(channels)), around(mean.begin(), mean.end()),
      shift(static_cast<std::size_t>(channels));
  for (std::size_t c = 0; c < scale.size(); ++c) {
    scale[c] = InverseDeviation(variance[c], epsilon) * (gamma.empty() ? 1.0f : gamma[c]);
    shift[c] = beta.empty() ? 0.0f : beta[c];
  }
  ParallelFor(threads, rows, RowsPerPart(channels), [&](std::int64_t begin, std::int64_t end) {
    const float *const a = scale.data(), *const m = around.data(), *const b = shift.data();
    WideIn wide_in(x);
    WideOut wide_out(y);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const in = wide_in.Load(r * channels, channels);
      float* const out = wide_out.At(r * channels, channels);
      for (std::int64_t c = 0; c < channels; ++c) out[c] = (in[c] - m[c]) * a[c] + b[c];
      wide_out.Store();
    }
  });
}

}  // namespace

void BatchNormForward(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                      AnyIn x, In gamma, In beta, Out mean, Out variance, AnyOut y) {
  const std::vector<double> sums = SumRows<1>(threads, rows, channels, std::array{x},
                                              [&](std::int64_t, const auto& row_of, double* to) {
                                                const float* const in = row_of[0];
                                                for (std::int64_t c = 0; c < channels; ++c)
                                                  to[c] += in[c];
                                              });
  for (std::size_t c = 0; c < mean.size(); ++c)
    mean[c] = static_cast<float>(sums[c] / static_cast<double>(rows));
  const std::vector<double> squares = SumRows<1>(
      threads, rows, channels, std::array{x}, [&](std::int64_t, const auto& row_of, double* to) {
        const float *const in = row_of[0], *const m = mean.data();
        for (std::int64_t c = 0; c < channels; ++c) {
          const double distance = static_cast<double>(in[c]) - m[c];
          to[c] += distance * distance;
        }
      });
  for (std::size_t c = 0; c < variance.size(); ++c)
    variance[c] = static_cast<float>(squares[c] / static_cast<double>(rows));
  ScaleAndShift(threads, rows, channels, epsilon, x, gamma, beta, mean, variance, y);
}

void BatchNormInference(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                        AnyIn x, In gamma, In beta, In mean, In variance, AnyOut y) {
  ScaleAndShift(threads, rows, channels, epsilon, x, gamma, beta, mean, variance, y);
}

// Computes, with n = (x - mean) / deviation, dbeta = sum dy, dgamma = sum dy n, and dx = gamma /
// deviation (dy - dbeta / rows - n dgamma / rows).
void BatchNormBackward(int threads, std::int64_t rows, std::int64_t channels, double epsilon,
                       AnyIn x, In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                       Out dbeta) {
  std::vector<float> inverse(static_cast<std::size_t>(channels));
  for (std::size_t c = 0; c < inverse.size(); ++c)
    inverse[c] = InverseDeviation(variance[c], epsilon);
  const std::vector<double> sums =
      SumRows<2>(threads, rows, channels, std::array{x, dy},
                 [&](std::int64_t, const auto& row_of, double* to) {
                   const float *const in = row_of[0], *const g = row_of[1], *const m = mean.data(),
                                      *const a = inverse.data();
                   double* const products = to + channels;
                   for (std::int64_t c = 0; c < channels; ++c) to[c] += g[c];
                   for (std::int64_t c = 0; c < channels; ++c)
                     products[c] += static_cast<double>(g[c]) * ((in[c] - m[c]) * a[c]);
                 });
  const double* const products = sums.data() + channels;
  for (std::size_t c = 0; c < dbeta.size(); ++c) dbeta[c] = static_cast<float>(sums[c]);
  for (std::size_t c = 0; c < dgamma.size(); ++c) dgamma[c] = static_cast<float>(products[c]);
  if (dx.empty()) return;
  std::vector<float> scale(inverse.size()), mean_gradient(inverse.size()), slope(inverse.size());
  for (std::size_t c = 0; c < scale.size(); ++c) {
    scale[c] = inverse[c] * (gamma.empty() ? 1.0f : gamma[c]);
    mean_gradient[c] = static_cast<float>(sums[c] / static_cast<double>(rows));
    slope[c] = static_cast<float>(products[c] / static_cast<double>(rows)) * inverse[c];
  }
  ParallelFor(threads, rows, RowsPerPart(channels), [&](std::int64_t begin, std::int64_t end) {
    const float *const a = scale.data(), *const m = mean.data(),
                       *const g_mean = mean_gradient.data(), *const s = slope.data();
    WideIn wide_in(x), wide_gradient(dy);
    WideOut wide_out(dx);
    for (std::int64_t r = begin; r < end; ++r) {
      const float *const in = wide_in.Load(r * channels, channels), *const g = wide_gradient.Load(
                                                                        r * channels, channels);
      float* const out = wide_out.At(r * channels, channels);
      for (std::int64_t c = 0; c < channels; ++c)
        out[c] = a[c] * (g[c] - g_mean[c] - (in[c] - m[c]) * s[c]);
      wide_out.Store();
    }
  });
}

void LayerNormForward(int threads, std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                      In gamma, In beta, Out mean, Out variance, AnyOut y) {
  ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
    WideIn wide_in(x);
    WideOut wide_out(y);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const in = wide_in.Load(r * columns, columns);
      float* const out = wide_out.At(r * columns, columns);
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c) sum += in[c];
      const float m = mean[static_cast<std::size_t>(r)] =
          static_cast<float>(sum / static_cast<double>(columns));
      double squares = 0;
      for (std::int64_t c = 0; c < columns; ++c)
        squares += (static_cast<double>(in[c]) - m) * (static_cast<double>(in[c]) - m);
      const float v = variance[static_cast<std::size_t>(r)] =
          static_cast<float>(squares / static_cast<double>(columns));
      const float a = InverseDeviation(v, epsilon);
      const float *const scale = gamma.data(), *const shift = beta.data();
      for (std::int64_t c = 0; c < columns; ++c) out[c] = (in[c] - m) * a;
      if (!gamma.empty())
        for (std::int64_t c = 0; c < columns; ++c) out[c] *= scale[c];
      if (!beta.empty())
        for (std::int64_t c = 0; c < columns; ++c) out[c] += shift[c];
      wide_out.Store();
    }
  });
}

void LayerNormBackward(int threads, std::int64_t rows, std::int64_t columns, double epsilon,
                       AnyIn x, In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                       Out dbeta) {
  if (!dgamma.empty() || !dbeta.empty()) {
    const std::vector<double> sums = SumRows<2>(
        threads, rows, columns, std::array{x, dy},
        [&](std::int64_t row, const auto& row_of, double* to) {
          const float *const in = row_of[0], *const g = row_of[1];
          const float m = mean[static_cast<std::size_t>(row)],
                      a = InverseDeviation(variance[static_cast<std::size_t>(row)], epsilon);
          double* const products = to + columns;
          for (std::int64_t c = 0; c < columns; ++c) to[c] += g[c];
          for (std::int64_t c = 0; c < columns; ++c)
            products[c] += static_cast<double>(g[c]) * ((in[c] - m) * a);
        });
    for (std::size_t c = 0; c < dbeta.size(); ++c) dbeta[c] = static_cast<float>(sums[c]);
    for (std::size_t c = 0; c < dgamma.size(); ++c)
      dgamma[c] = static_cast<float>(sums[static_cast<std::size_t>(columns) + c]);
  }
  if (dx.empty()) return;
  // With g = dy gamma and n = (x - mean) / deviation: dx = (g - mean of g - n times mean of g n) /
  // deviation, means over the row.
  ParallelFor(threads, rows, RowsPerPart(columns), [&](std::int64_t begin, std::int64_t end) {
    WideIn wide_in(x), wide_gradient(dy);
    WideOut wide_out(dx);
    for (std::int64_t r = begin; r < end; ++r) {
      const float *const in = wide_in.Load(r * columns, columns),
                         *const g = wide_gradient.Load(r * columns, columns),
                         *const scale = gamma.data();
      float* const out = wide_out.At(r * columns, columns);
      const float m = mean[static_cast<std::size_t>(r)],
                  a = InverseDeviation(variance[static_cast<std::size_t>(r)], epsilon);
      if (gamma.empty()) {
        for (std::int64_t c = 0; c < columns; ++c) out[c] = g[c];
      } else {
        for (std::int64_t c = 0; c < columns; ++c) out[c] = g[c] * scale[c];
      }
      double sum = 0, products = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        sum += out[c];
        products += static_cast<double>(out[c]) * ((in[c] - m) * a);
      }
      const float g_mean = static_cast<float>(sum / static_cast<double>(columns)),
                  slope = static_cast<float>(products / static_cast<double>(columns)) * a;
      for (std::int64_t c = 0; c < columns; ++c)
        out[c] = a * (out[c] - g_mean - (in[c] - m) * slope);
      wide_out.Store();
    }
  });
}

void GlobalAveragePoolForward(int threads, std::int64_t batch, std::int64_t positions,
                              std::int64_t channels, AnyIn x, AnyOut y) {
  ParallelFor(threads, batch, RowsPerPart(positions * channels),
              [&](std::int64_t begin, std::int64_t end) {
                std::vector<double> sums(static_cast<std::size_t>(channels));
                WideIn wide_in(x);
                WideOut wide_out(y);
                for (std::int64_t n = begin; n < end; ++n) {
                  std::fill(sums.begin(), sums.end(), 0.0);
                  for (std::int64_t p = 0; p < positions; ++p) {
                    const float* const in = wide_in.Load((n * positions + p) * channels, channels);
                    for (std::int64_t c = 0; c < channels; ++c)
                      sums[static_cast<std::size_t>(c)] += in[c];
                  }
                  float* const out = wide_out.At(n * channels, channels);
                  for (std::int64_t c = 0; c < channels; ++c)
                    out[c] = static_cast<float>(sums[static_cast<std::size_t>(c)] /
                                                static_cast<double>(positions));
                  wide_out.Store();
                }
              });
}

void GlobalAveragePoolBackward(int threads, std::int64_t batch, std::int64_t positions,
                               std::int64_t channels, AnyIn dy, AnyOut dx) {
  const float share = static_cast<float>(1.0 / static_cast<double>(positions));
  ParallelFor(threads, batch, RowsPerPart(positions * channels),
              [&](std::int64_t begin, std::int64_t end) {
                WideIn wide_gradient(dy);
                WideOut wide_out(dx);
                for (std::int64_t n = begin; n < end; ++n) {
                  const float* const g = wide_gradient.Load(n * channels, channels);
                  for (std::int64_t p = 0; p < positions; ++p) {
                    float* const out = wide_out.At((n * positions + p) * channels, channels);
                    for (std::int64_t c = 0; c < channels; ++c) out[c] = g[c] * share;
                    wide_out.Store();
                  }
                }
              });
}

}  // namespace evergrad::worker::cpu
