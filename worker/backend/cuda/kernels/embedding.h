// Embeddings and factorization machines. Threads run over the dimension first, so that neighbouring
// threads read neighbouring elements of a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/backend/cuda/cuda_ops.h"
#include "worker/backend/cuda/kernels/element.h"
#include "worker/backend/cuda/kernels/scratch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace evergrad::cuda {

inline constexpr std::uint32_t kNoRow = 0xFFFFFFFFu;

// Returns the index in `position` ([inputs][batch][width]) of id `j` of an example. The ids of an
// example are numbered through all of its inputs.
EG_HD std::int64_t PlaceOf(const EgEmbedding& s, std::int64_t example, std::int64_t j) {
  std::int64_t before = 0;
  for (int k = 0; k < s.count; ++k) {
    const std::int64_t width = s.widths[k];
    if (j < width) return before * s.batch + example * width + j;
    j -= width;
    before += width;
  }
  return 0;  // j is below s.ids
}
// Returns the scale of the ids of an example.
EG_HD double BagScale(const EgEmbedding& s, const std::uint32_t* position, const float* weights,
                      std::int64_t example) {
  if (s.combiner == EG_NONE || s.combiner == EG_BAG_SUM) return 1;
  double sum = 0;
  for (std::int64_t j = 0; j < s.ids; ++j) {
    const std::int64_t at = PlaceOf(s, example, j);
    if (position[at] == kNoRow) continue;
    const double w = weights == nullptr ? 1.0 : weights[at];
    sum += s.combiner == EG_BAG_MEAN ? w : w * w;
  }
  if (sum == 0) return 0;
  return s.combiner == EG_BAG_MEAN ? 1.0 / sum : 1.0 / sqrt(sum);
}

// With kNone, rows are copied. This reads and writes 4 bytes per element, and needs one random
// access per row. With a combiner, the rows of a bag are read once. A thread computes one element
// of the result, so all threads of a bag read its positions and weights, from the caches.
template <typename T>
struct GatherMap {
  EgGather a;
  std::int64_t threads() const {
    return a.s.batch * a.s.dimension * (a.s.combiner == EG_NONE ? a.s.ids : 1);
  }
  EG_HD void operator()(std::int64_t t) const {
    const EgEmbedding& s = a.s;
    const std::int64_t d = Rest(t, s.dimension), n = Quotient(t, s.dimension);
    if (s.combiner == EG_NONE) {
      const std::uint32_t row = a.position[PlaceOf(s, Quotient(n, s.ids), Rest(n, s.ids))];
      As<T>(a.y)[t] =
          T(row == kNoRow ? 0.0f : a.rows[static_cast<std::int64_t>(row) * s.dimension + d]);
      return;
    }
    const double scale = BagScale(s, a.position, a.weights, n);
    float sum = 0;
    for (std::int64_t j = 0; j < s.ids; ++j) {
      const std::int64_t at = PlaceOf(s, n, j);
      const std::uint32_t row = a.position[at];
      if (row == kNoRow) continue;
      const float factor = static_cast<float>((a.weights == nullptr ? 1.0 : a.weights[at]) * scale);
      sum += factor * a.rows[static_cast<std::int64_t>(row) * s.dimension + d];
    }
    As<T>(a.y)[t] = T(sum);
  }
};

// The gradients of a row are added in the order of the batch. The gradients are therefore first
// sorted by row with a stable sort (device/sort.cu: a radix sort of 32-bit pairs, four passes over
// 8 bytes per id). A run of equal rows is then added by one team: each thread takes elements of the
// dimension, and adds the gradients of the run in order.
struct ScatterKeysMap {
  EgScatter a;
  std::uint32_t *keys, *values;
  EG_HD void operator()(std::int64_t i) const {
    const std::uint32_t row = a.position[PlaceOf(a.s, Quotient(i, a.s.ids), Rest(i, a.s.ids))];
    keys[i] = row == kNoRow ? static_cast<std::uint32_t>(a.rows) : row;
    values[i] = static_cast<std::uint32_t>(i);
  }
};
// Computes scales[example] once, instead of once per id.
struct BagScaleMap {
  EgScatter a;
  double* scales;
  EG_HD void operator()(std::int64_t example) const {
    scales[example] = BagScale(a.s, a.position, a.weights, example);
  }
};
template <typename T>
struct ScatterTeam {
  EgScatter a;
  const std::uint32_t *keys, *values;  // sorted
  const double* scales;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t i) const {
    const std::int64_t n = a.s.batch * a.s.ids, dimension = a.s.dimension;
    const std::uint32_t row = keys[i];
    // The id is absent, or is not the first of its run.
    if (row == static_cast<std::uint32_t>(a.rows) || (i > 0 && keys[i - 1] == row)) return;
    team.For(dimension, [&](std::int64_t d) {
      float* const to = a.row_gradients + static_cast<std::int64_t>(row) * dimension + d;
      float sum = *to;
      for (std::int64_t j = i; j < n && keys[j] == row; ++j) {
        const std::int64_t id = values[j], example = Quotient(id, a.s.ids),
                           at = PlaceOf(a.s, example, Rest(id, a.s.ids));
        if (a.s.combiner == EG_NONE) {
          sum += As<T>(a.dy)[id * dimension + d];
        } else {
          const float factor =
              static_cast<float>((a.weights == nullptr ? 1.0 : a.weights[at]) * scales[example]);
          sum += factor * As<T>(a.dy)[example * dimension + d];
        }
      }
      *to = sum;
    });
  }
};
// The parts of the scratch memory: keys, values, their sorted copies, scales, and the memory of the
// sort (`sort_bytes`).
struct ScatterScratch {
  std::int64_t keys, values, sorted_keys, sorted_values, scales, sort, bytes;
  static ScatterScratch Of(std::int64_t batch, std::int64_t ids, std::int64_t sort_bytes) {
    const std::int64_t n = DivideUp(4 * batch * ids, 256) * 256;
    ScatterScratch s{};
    s.keys = 0, s.values = n, s.sorted_keys = 2 * n, s.sorted_values = 3 * n, s.scales = 4 * n;
    s.sort = s.scales + DivideUp(8 * batch, 256) * 256;
    s.bytes = s.sort + sort_bytes;
    return s;
  }
};

// A thread computes one element of an example's sums, and the squares. A team then adds the
// contributions of all elements of the dimension.
struct FactorizationTeam {
  EgFactorization a;
  template <typename Team>
  EG_HD void operator()(const Team& team, std::int64_t n) const {
    const auto term = [&](std::int64_t d) {
      float sum = 0;
      double squares = 0;
      for (int k = 0; k < a.count; ++k) {
        const float* const v = a.inputs[k] + n * a.fields[k] * a.dimension + d;
        for (std::int64_t f = 0; f < a.fields[k]; ++f) {
          const float x = v[f * a.dimension];
          sum += x;
          squares += static_cast<double>(x) * x;
        }
      }
      a.sums[n * a.dimension + d] = sum;
      return static_cast<double>(sum) * sum - squares;
    };
    const double all = team.Reduce(a.dimension, 0.0, term, Plus{});
    team.Once([&] { a.y[n] = static_cast<float>(0.5 * all); });
  }
};
struct FactorizationBackMap {
  EgFactorizationBack a;
  EG_HD void operator()(std::int64_t t) const {
    const std::int64_t d = Rest(t, a.dimension), n = Quotient(Quotient(t, a.dimension), a.fields);
    a.dv[t] = a.dy[n] * (a.sums[n * a.dimension + d] - a.v[t]);
  }
};

}  // namespace evergrad::cuda
