// Kernels whose result for a row depends on the whole row (softmax, layer normalization, scalar
// products), and sums over whole arrays.
//
// Neighbouring threads of a team read neighbouring elements of a row. A warp processes rows of up
// to 1,024 elements: it needs no barrier, and the row stays in the first-level cache between
// passes. A block processes longer rows. The memory bandwidth bounds all of these kernels: softmax
// and layer normalization read a row three times and write it once; the second and third read come
// from the caches for rows below about 32 KB.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/element.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

EG_HD float InverseDeviation(float variance, double epsilon) {
  return 1.0f / sqrtf(variance + static_cast<float>(epsilon));
}

template <typename T>
struct SoftmaxTeam {
  EgSoftmax a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t row) const {
    const T* const x = As<T>(a.x) + row * a.columns;
    T* const y = As<T>(a.y) + row * a.columns;
    const float largest = team.Reduce(
        a.columns, static_cast<float>(x[0]),
        [&](std::int64_t c) { return static_cast<float>(x[c]); }, MaxOrNan{});
    const double sum = team.Reduce(
        a.columns, 0.0, [&](std::int64_t c) { return static_cast<double>(expf(x[c] - largest)); },
        Plus{});
    const float factor = static_cast<float>(1.0 / sum);
    // A thread writes only elements that it alone has read, so the kernel may work in place.
    team.For(a.columns, [&](std::int64_t c) { y[c] = T(expf(x[c] - largest) * factor); });
  }
};

// Computes dx = y (dy - sum of y dy).
template <typename T>
struct SoftmaxBackTeam {
  EgSoftmaxBack a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t row) const {
    const T *const y = As<T>(a.y) + row * a.columns, *const dy = As<T>(a.dy) + row * a.columns;
    T* const dx = As<T>(a.dx) + row * a.columns;
    const double sum = team.Reduce(
        a.columns, 0.0,
        [&](std::int64_t c) { return static_cast<double>(y[c]) * static_cast<double>(dy[c]); },
        Plus{});
    const float along = static_cast<float>(sum);
    team.For(a.columns, [&](std::int64_t c) { dx[c] = T(y[c] * (dy[c] - along)); });
  }
};

template <typename T>
struct LayerNormTeam {
  EgLayerNorm a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t row) const {
    const T* const x = As<T>(a.x) + row * a.columns;
    T* const y = As<T>(a.y) + row * a.columns;
    const double n = static_cast<double>(a.columns);
    const float mean = static_cast<float>(
        team.Reduce(
            a.columns, 0.0, [&](std::int64_t c) { return static_cast<double>(x[c]); }, Plus{}) /
        n);
    const auto square = [&](std::int64_t c) {
      const double distance = static_cast<double>(x[c]) - mean;
      return distance * distance;
    };
    const float variance = static_cast<float>(team.Reduce(a.columns, 0.0, square, Plus{}) / n);
    const float inverse = InverseDeviation(variance, a.epsilon);
    team.Once([&] {
      a.mean[row] = mean;
      a.variance[row] = variance;
    });
    team.For(a.columns, [&](std::int64_t c) {
      const float normal = (x[c] - mean) * inverse;
      y[c] = T(normal * (a.gamma == nullptr ? 1.0f : a.gamma[c]) +
               (a.beta == nullptr ? 0.0f : a.beta[c]));
    });
  }
};

// With g = dy gamma and n = (x - mean) / deviation: dx = (g - mean of g - n times mean of g n) /
// deviation, means over the row.
template <typename T>
struct LayerNormBackTeam {
  EgLayerNormBack a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t row) const {
    const T *const x = As<T>(a.x) + row * a.columns, *const dy = As<T>(a.dy) + row * a.columns;
    T* const dx = As<T>(a.dx) + row * a.columns;
    const double n = static_cast<double>(a.columns);
    const float mean = a.mean[row], inverse = InverseDeviation(a.variance[row], a.epsilon);
    const auto g = [&](std::int64_t c) {
      return a.gamma == nullptr ? static_cast<float>(dy[c]) : dy[c] * a.gamma[c];
    };
    const float g_mean = static_cast<float>(
        team.Reduce(
            a.columns, 0.0, [&](std::int64_t c) { return static_cast<double>(g(c)); }, Plus{}) /
        n);
    const auto product = [&](std::int64_t c) {
      return static_cast<double>(g(c)) * ((x[c] - mean) * inverse);
    };
    const float slope =
        static_cast<float>(team.Reduce(a.columns, 0.0, product, Plus{}) / n) * inverse;
    team.For(a.columns,
             [&](std::int64_t c) { dx[c] = T(inverse * (g(c) - g_mean - (x[c] - mean) * slope)); });
  }
};

// The sum of the products of two vectors, and the sums of their squares. One pass over both vectors
// computes all three.
struct ThreeSums {
  double ab, aa, bb;
  EG_HD ThreeSums operator+(const ThreeSums& other) const {
    return {ab + other.ab, aa + other.aa, bb + other.bb};
  }
};
template <typename Team>
EG_HD ThreeSums ProductsOf(const Team& team, std::int64_t n, const float* a, const float* b) {
  return team.Reduce(
      n, ThreeSums{0, 0, 0},
      [&](std::int64_t e) {
        const double p = a[e], q = b[e];
        return ThreeSums{p * q, p * p, q * q};
      },
      Plus{});
}
// Returns `square`, but at least kSquareMin; NaN stays NaN.
EG_HD double HeldSquare(double square) { return square < 1e-12 ? 1e-12 : square; }

struct DotTeam {
  EgDot a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t n) const {
    const ThreeSums s = ProductsOf(team, a.elements, a.a + n * a.elements, a.b + n * a.elements);
    team.Once([&] {
      a.y[n] = static_cast<float>(
          a.normalize != 0 ? s.ab / sqrt(HeldSquare(s.aa) * HeldSquare(s.bb)) : s.ab);
    });
  }
};
struct DotBackTeam {
  EgDotBack a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t n) const {
    const float *const p = a.a + n * a.elements, *const q = a.b + n * a.elements;
    float* const to = a.da + n * a.elements;
    const float dy = a.dy[n];
    if (a.normalize == 0) {
      team.For(a.elements, [&](std::int64_t e) { to[e] = dy * q[e]; });
      return;
    }
    const ThreeSums s = ProductsOf(team, a.elements, p, q);
    const double square = HeldSquare(s.aa), scale = dy / sqrt(square * HeldSquare(s.bb)),
                 along = s.aa > 1e-12 ? scale * s.ab / square : 0.0;
    team.For(a.elements,
             [&](std::int64_t e) { to[e] = static_cast<float>(scale * q[e] - along * p[e]); });
  }
};

// Computes a sum over an array in two steps: a block for each part, then one block for the parts.
struct SquaresPartTeam {
  EgSquares a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t begin = part * kElementsPerPart, n = Least(a.n - begin, kElementsPerPart);
    const float* const x = a.x + begin;
    const double sum = team.Reduce(
        n, 0.0, [&](std::int64_t i) { return static_cast<double>(x[i]) * x[i]; }, Plus{});
    team.Once([&] { a.scratch[part] = sum; });
  }
};
struct PartsTeam {
  const double* parts;
  std::int64_t n;
  double* sum;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t) const {
    const double* const from = parts;
    const double all = team.Reduce(
        n, 0.0, [=](std::int64_t i) { return from[i]; }, Plus{});
    team.Once([&] { *sum = all; });
  }
};

}  // namespace evergrad::cuda
