// Rows of an embedding table in the place of ids: one a id, or one a bag of ids (combiner sum,
// mean, sqrtn, with weights).
//
// A negative id is padding: it reads as zeros, counts in no bag and has no gradient. A bag without
// ids (or whose weights add up to nothing that can be divided by) gives zeros. mean divides by the
// sum of the weights, sqrtn by the square root of the sum of their squares.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/layers/layer.h"
#include "worker/layers/unique_ids.h"

namespace evergrad::worker {

// Its rows come from outside, so the graph calls Gather and Scatter and never Forward and Backward.
class Embedding final : public MergeLayer {
 public:
  // The plan's inputs are the shapes of its ids.
  explicit Embedding(const LayerPlan& plan);

  std::size_t ids_per_example() const { return ids_; }
  // position: [inputs][batch][elements of the input], kAbsent for padding; rows: [ids, dimension];
  // weights empty or as the ids.
  void Gather(const Pass& pass, std::span<const std::uint32_t> position, In rows, In weights,
              AnyOut y) const {
    pass.backend.EmbeddingGather(Of(pass), position, rows, weights, y);
  }
  // Adds to `row_gradients`, in the order of examples, and in each of inputs and elements.
  void Scatter(const Pass& pass, std::span<const std::uint32_t> position, In weights, AnyIn dy,
               Out row_gradients) const {
    pass.backend.EmbeddingScatter(Of(pass), position, weights, dy, row_gradients);
  }

 private:
  EmbeddingShape Of(const Pass& pass) const { return {pass.batch, dimension_, widths_, combiner_}; }

  const std::int64_t dimension_;
  const Combiner combiner_;
  std::vector<std::int64_t> widths_;  // elements of each input
  std::size_t ids_ = 0;
};

}  // namespace evergrad::worker
