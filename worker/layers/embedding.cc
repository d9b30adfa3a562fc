#include "worker/layers/embedding.h"

#include "common/base/check.h"

namespace evergrad::worker {
namespace {

Combiner CombinerOf(const config::LayerSpec& spec) {
  if (spec.combiner == "none") return Combiner::kNone;
  if (spec.combiner == "sum") return Combiner::kSum;
  if (spec.combiner == "mean") return Combiner::kMean;
  EG_CHECK(spec.combiner == "sqrtn");  // the shape rule has checked the name
  return Combiner::kSqrtN;
}

}  // namespace

Embedding::Embedding(const LayerPlan& plan)
    : MergeLayer(plan),
      dimension_(static_cast<std::int64_t>(plan.inputs.dimension)),
      combiner_(CombinerOf(plan.spec)) {
  for (const tensor::Shape& input : plan.inputs.shapes) {
    widths_.push_back(static_cast<std::int64_t>(input.elements()));
    ids_ += static_cast<std::size_t>(input.elements());
  }
}

std::vector<LayerMaker> EmbeddingMakers() { return {{"embedding", &MakeOf<Embedding>}}; }

}  // namespace evergrad::worker
