#include "worker/backend/cpu/products.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/backend/cpu/team.h"

namespace evergrad::worker::cpu {
namespace {

constexpr std::int64_t kElementsPerPart = 8192;

double Product(std::int64_t n, const float* a, const float* b) {
  double sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += static_cast<double>(a[e]) * b[e];
  return sum;
}
double Square(std::int64_t n, const float* a) { return std::max(Product(n, a, a), kSquareMin); }

std::int64_t ExamplesPerPart(std::int64_t elements) {
  return std::max<std::int64_t>(1, kElementsPerPart / std::max<std::int64_t>(1, elements));
}

}  // namespace

void DotForward(int threads, std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                Out y) {
  ParallelFor(threads, batch, ExamplesPerPart(elements), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float *const u = a.data() + n * elements, *const v = b.data() + n * elements;
      double product = Product(elements, u, v);
      if (normalize) product /= std::sqrt(Square(elements, u) * Square(elements, v));
      y.data()[n] = static_cast<float>(product);
    }
  });
}

void DotBackward(int threads, std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                 In dy, Out da) {
  ParallelFor(threads, batch, ExamplesPerPart(elements), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float *const u = a.data() + n * elements, *const v = b.data() + n * elements;
      float* const to = da.data() + n * elements;
      const float g = dy.data()[n];
      if (!normalize) {
        for (std::int64_t e = 0; e < elements; ++e) to[e] = g * v[e];
        continue;
      }
      const double square = Square(elements, u),
                   scale = g / std::sqrt(square * Square(elements, v));
      const double along = square > kSquareMin ? scale * Product(elements, u, v) / square : 0;
      for (std::int64_t e = 0; e < elements; ++e)
        to[e] = static_cast<float>(scale * v[e] - along * u[e]);
    }
  });
}

void FactorizationForward(int threads, std::int64_t batch, std::int64_t dimension,
                          std::span<const In> inputs, Out sums, Out y) {
  std::size_t elements = 0;
  for (const In input : inputs) elements += input.size();
  ParallelFor(
      threads, batch,
      ExamplesPerPart(static_cast<std::int64_t>(elements) / std::max<std::int64_t>(1, batch)),
      [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> squares(static_cast<std::size_t>(dimension));
        for (std::int64_t n = begin; n < end; ++n) {
          float *const sum = sums.data() + n * dimension, *const square = squares.data();
          std::fill_n(sum, dimension, 0.0f);
          std::fill_n(square, dimension, 0.0f);
          for (const In input : inputs) {
            const std::int64_t stride = static_cast<std::int64_t>(input.size()) / batch;
            const float* v = input.data() + n * stride;
            for (const float* const last = v + stride; v < last; v += dimension) {
              for (std::int64_t d = 0; d < dimension; ++d) sum[d] += v[d];
              for (std::int64_t d = 0; d < dimension; ++d) square[d] += v[d] * v[d];
            }
          }
          double total = 0;
          for (std::int64_t d = 0; d < dimension; ++d)
            total += static_cast<double>(sum[d]) * sum[d] - square[d];
          y.data()[n] = static_cast<float>(0.5 * total);
        }
      });
}

void FactorizationBackward(int threads, std::int64_t batch, std::int64_t dimension, In v, In sums,
                           In dy, Out dv) {
  const std::int64_t stride = static_cast<std::int64_t>(v.size()) / batch;
  ParallelFor(threads, batch, ExamplesPerPart(stride), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float* const sum = sums.data() + n * dimension;
      const float g = dy.data()[n];
      for (std::int64_t at = n * stride; at < (n + 1) * stride; at += dimension) {
        const float* const from = v.data() + at;
        float* const to = dv.data() + at;
        for (std::int64_t d = 0; d < dimension; ++d) to[d] = g * (sum[d] - from[d]);
      }
    }
  });
}

}  // namespace evergrad::worker::cpu
