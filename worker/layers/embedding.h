// Looks up rows of an embedding table: one per id, or one per bag of ids (combiner sum, mean,
// sqrtn, with optional weights).
//
// A negative id is padding: it reads zeros, is not part of a bag and has no gradient. A bag gives
// zeros if it has no ids, or if the combiner would divide by zero. The combiner mean divides by the
// sum of the weights, and sqrtn by the square root of the sum of the squared weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/layers/layer.h"
#include "worker/layers/unique_ids.h"

namespace evergrad::worker {

// The caller passes the rows. The graph therefore calls Gather and Scatter in place of Forward and
// Backward.
class Embedding final : public MergeLayer {
 public:
  // The inputs of the plan are the shapes of the layer's ids.
  explicit Embedding(const LayerPlan& plan);

  std::size_t ids_per_example() const { return ids_; }
  // `position` is [inputs][batch][elements of the input], kAbsent for padding; `rows` is [ids,
  // dimension]; `weights` are empty or have the shape of the ids.
  void Gather(const Pass& pass, std::span<const std::uint32_t> position, In rows, In weights,
              AnyOut y) const {
    pass.backend.EmbeddingGather(Of(pass), position, rows, weights, y);
  }
  // Adds the gradients of the ids to `row_gradients`, in the order of examples, and within an
  // example in the order of inputs and elements.
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
