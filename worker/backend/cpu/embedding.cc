#include "worker/backend/cpu/embedding.h"

#include <algorithm>
#include <cmath>

#include "worker/backend/cpu/wide.h"

namespace evergrad::worker::cpu {
namespace {

std::size_t IdsPerExample(const EmbeddingShape& s) {
  std::int64_t ids = 0;
  for (const std::int64_t width : s.widths) ids += width;
  return static_cast<std::size_t>(ids);
}

// Calls row(position, element of the example, weight) for each id of example `n`.
template <typename Row>
void ForEach(const EmbeddingShape& s, std::size_t n, std::span<const std::uint32_t> position,
             In weights, Row row) {
  std::size_t begin = 0, element = 0;
  for (const std::int64_t w : s.widths) {
    const std::size_t width = static_cast<std::size_t>(w);
    for (std::size_t e = 0; e < width; ++e, ++element) {
      const std::size_t at = begin + n * width + e;
      row(position[at], element, weights.empty() ? 1.0f : weights[at]);
    }
    begin += static_cast<std::size_t>(s.batch) * width;
  }
}

// Returns the factor of a bag's sum.
float BagScale(const EmbeddingShape& s, std::size_t n, std::span<const std::uint32_t> position,
               In weights) {
  if (s.combiner == Combiner::kNone || s.combiner == Combiner::kSum) return 1;
  double sum = 0;
  ForEach(s, n, position, weights, [&](std::uint32_t p, std::size_t, float w) {
    if (p != kAbsent) sum += s.combiner == Combiner::kMean ? w : static_cast<double>(w) * w;
  });
  if (s.combiner == Combiner::kSqrtN) sum = std::sqrt(sum);
  return sum == 0 ? 0.0f : static_cast<float>(1 / sum);
}

}  // namespace

void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position, In rows,
                     In weights, AnyOut y) {
  const std::size_t dimension = static_cast<std::size_t>(s.dimension);
  const bool bag = s.combiner != Combiner::kNone;
  const std::size_t stride = bag ? dimension : IdsPerExample(s) * dimension;
  WideOut wide(y);
  for (std::size_t n = 0; n < static_cast<std::size_t>(s.batch); ++n) {
    float* const out =
        wide.At(static_cast<std::int64_t>(n * stride), static_cast<std::int64_t>(stride));
    if (bag) std::fill_n(out, dimension, 0.0f);
    const float scale = BagScale(s, n, position, weights);
    ForEach(s, n, position, weights, [&](std::uint32_t p, std::size_t element, float w) {
      const bool absent = p == kAbsent;
      const float* const row =
          absent ? nullptr : rows.data() + static_cast<std::size_t>(p) * dimension;
      if (!bag) {
        float* const to = out + element * dimension;
        if (absent)
          std::fill_n(to, dimension, 0.0f);
        else
          std::copy_n(row, dimension, to);
      } else if (!absent) {
        const float factor = w * scale;
        for (std::size_t d = 0; d < dimension; ++d) out[d] += factor * row[d];
      }
    });
    wide.Store();
  }
}

void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position, In weights,
                      AnyIn dy, Out row_gradients) {
  const std::size_t dimension = static_cast<std::size_t>(s.dimension);
  const bool bag = s.combiner != Combiner::kNone;
  const std::size_t stride = bag ? dimension : IdsPerExample(s) * dimension;
  WideIn wide(dy);
  for (std::size_t n = 0; n < static_cast<std::size_t>(s.batch); ++n) {
    const float* const from =
        wide.Load(static_cast<std::int64_t>(n * stride), static_cast<std::int64_t>(stride));
    const float scale = BagScale(s, n, position, weights);
    ForEach(s, n, position, weights, [&](std::uint32_t p, std::size_t element, float w) {
      if (p == kAbsent) return;
      float* const to = row_gradients.data() + static_cast<std::size_t>(p) * dimension;
      const float* const g = bag ? from : from + element * dimension;
      const float factor = bag ? w * scale : 1.0f;
      for (std::size_t d = 0; d < dimension; ++d) to[d] += factor * g[d];
    });
  }
}

}  // namespace evergrad::worker::cpu
