// Sums over the rows for each column: bias gradients, batch normalization; and what batch normalization does element by element.
//
// First step: a thread adds the rows of one part of one column (scratch.h), so that neighbours read neighbouring columns: each array is read
// once, at the memory's speed while columns fill whole sectors (8 or more). Second step: a warp a column adds the parts, a hundredth of the
// traffic. Everything in double, at half of the float rate on sm_80 and sm_90, which two additions for 4 bytes do not reach.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/rows.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

// scratch[s][part][column] = sum over the part's rows of term.at(row, column, s).
template <int kSums, typename Term>
struct ColumnPartsMap {
  std::int64_t rows, columns, parts, per_part;
  double* scratch;
  Term term;
  ColumnPartsMap(std::int64_t r, std::int64_t c, double* to, Term t)
      : rows(r), columns(c), parts(ColumnParts(r, c)), per_part(RowsPerPart(r, c)), scratch(to), term(t) {}
  std::int64_t threads() const { return parts * columns; }
  EG_HD void operator()(std::int64_t t) const {
    const std::int64_t part = Quotient(t, columns), column = Rest(t, columns), end = Least(rows, (part + 1) * per_part);
    double sums[kSums] = {};
    for (std::int64_t row = part * per_part; row < end; ++row) term.Add(row, column, row * columns + column, sums);
    for (int s = 0; s < kSums; ++s) scratch[(s * parts + part) * columns + column] = sums[s];
  }
};
// finish(column, sums) by one thread of a warp.
template <int kSums, typename Finish>
struct ColumnFinishTeam {
  std::int64_t columns, parts;
  const double* scratch;
  Finish finish;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t column) const {
    double sums[kSums];
    for (int s = 0; s < kSums; ++s) {
      const double* const from = scratch + s * parts * columns + column;
      const std::int64_t step = columns;
      sums[s] = team.Reduce(
          parts, 0.0, [=](std::int64_t p) { return from[p * step]; }, Plus{});
    }
    team.Once([&] { finish(column, sums); });
  }
};

template <typename T>
struct SumTerm {
  const T* x;
  EG_HD void Add(std::int64_t, std::int64_t, std::int64_t at, double* sums) const { sums[0] += static_cast<double>(x[at]); }
};
struct StoreSum {
  float* y;
  double divisor;
  EG_HD void operator()(std::int64_t column, const double* sums) const { y[column] = static_cast<float>(sums[0] / divisor); }
};
template <typename T>
struct DistanceTerm {
  const T* x;
  const float* mean;
  EG_HD void Add(std::int64_t, std::int64_t column, std::int64_t at, double* sums) const {
    const double distance = static_cast<double>(x[at]) - mean[column];
    sums[0] += distance * distance;
  }
};

// y = (x - mean) gamma / deviation + beta: a read and a write; the four numbers of a channel come from the caches.
template <typename T>
struct BatchNormApplyMap {
  EgBatchNormInference a;
  EG_HD void operator()(std::int64_t i) const {
    const std::int64_t c = Rest(i, a.channels);
    const float scale = InverseDeviation(a.variance[c], a.epsilon) * (a.gamma == nullptr ? 1.0f : a.gamma[c]);
    As<T>(a.y)[i] = T((As<T>(a.x)[i] - a.mean[c]) * scale + (a.beta == nullptr ? 0.0f : a.beta[c]));
  }
};

// sums[0] of dy, sums[1] of dy times the normal value: of batch normalization by channels, of layer normalization by columns.
template <typename T>
struct BatchNormBackTerm {
  EgBatchNormBack a;
  EG_HD void Add(std::int64_t, std::int64_t c, std::int64_t at, double* sums) const {
    const double dy = As<T>(a.dy)[at];
    sums[0] += dy;
    sums[1] += dy * ((As<T>(a.x)[at] - a.mean[c]) * InverseDeviation(a.variance[c], a.epsilon));
  }
};
template <typename T>
struct LayerNormBackTerm {
  EgLayerNormBack a;
  EG_HD void Add(std::int64_t row, std::int64_t, std::int64_t at, double* sums) const {
    const double dy = As<T>(a.dy)[at];
    sums[0] += dy;
    sums[1] += dy * ((As<T>(a.x)[at] - a.mean[row]) * InverseDeviation(a.variance[row], a.epsilon));
  }
};
// The sums themselves go into the first part, where dx finds them.
struct StoreNormSums {
  float *dgamma, *dbeta;
  double* kept;  // [2][columns]; null: nobody asks
  std::int64_t columns;
  EG_HD void operator()(std::int64_t column, const double* sums) const {
    if (dbeta != nullptr) dbeta[column] = static_cast<float>(sums[0]);
    if (dgamma != nullptr) dgamma[column] = static_cast<float>(sums[1]);
    if (kept != nullptr) kept[column] = sums[0], kept[columns + column] = sums[1];
  }
};
// dx = gamma / deviation (dy - dbeta / rows - n dgamma / rows): two reads and a write.
template <typename T>
struct BatchNormBackMap {
  EgBatchNormBack a;
  const double* sums;  // [2][channels]
  EG_HD void operator()(std::int64_t i) const {
    const std::int64_t c = Rest(i, a.channels);
    const double rows = static_cast<double>(a.rows);
    const float inverse = InverseDeviation(a.variance[c], a.epsilon), scale = inverse * (a.gamma == nullptr ? 1.0f : a.gamma[c]);
    const float mean_gradient = static_cast<float>(sums[c] / rows), slope = static_cast<float>(sums[a.channels + c] / rows) * inverse;
    As<T>(a.dx)[i] = T(scale * (As<T>(a.dy)[i] - mean_gradient - (As<T>(a.x)[i] - a.mean[c]) * slope));
  }
};
// Of batch normalization's backward pass: the parts, then the two sums of each channel.
inline std::int64_t BatchNormBackScratch(std::int64_t rows, std::int64_t channels) { return ColumnScratch(rows, channels, 2) + 16 * channels; }

}  // namespace evergrad::cuda
