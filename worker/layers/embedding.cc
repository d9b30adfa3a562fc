#include "worker/layers/embedding.h"

#include "common/layers/combiners.h"
#include "common/layers/named.h"

namespace evergrad::worker {

Embedding::Embedding(const LayerPlan& plan)
    : MergeLayer(plan),
      dimension_(static_cast<std::int64_t>(plan.inputs.dimension)),
      // The shape rule has checked the name.
      combiner_(config::FindBuilt(config::Combiners(), plan.spec.combiner)->kind) {
  for (const tensor::Shape& input : plan.inputs.shapes) {
    widths_.push_back(static_cast<std::int64_t>(input.elements()));
    ids_ += static_cast<std::size_t>(input.elements());
  }
}

std::vector<LayerMaker> EmbeddingMakers() { return {{"embedding", &MakeOf<Embedding>}}; }

}  // namespace evergrad::worker
