#include "worker/layers/embedding.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

Embedding::Embedding(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs,
                     tensor::Shape output, std::uint32_t dimension, Combiner combiner)
    : MergeLayer(spec, "Embedding", inputs[0], std::move(output)),
      dimension_(dimension),
      combiner_(combiner) {
  for (const tensor::Shape& input : inputs) {
    widths_.push_back(static_cast<std::int64_t>(input.elements()));
    ids_ += static_cast<std::size_t>(input.elements());
  }
}

absl::StatusOr<std::unique_ptr<Embedding>> Embedding::Make(const config::LayerSpec& spec,
                                                           const std::vector<tensor::Shape>& inputs,
                                                           const tensor::Shape* weights,
                                                           std::uint32_t dimension) {
  std::uint64_t ids = 0;
  for (const tensor::Shape& input : inputs) {
    if (input.rank() > 1)
      return LayerError(
          spec, absl::StrCat("embedding needs ids of shape () or (n), got ", ShapeList(inputs)));
    ids += input.elements();
  }
  const Combiner combiner = spec.combiner == "none"   ? Combiner::kNone
                            : spec.combiner == "sum"  ? Combiner::kSum
                            : spec.combiner == "mean" ? Combiner::kMean
                                                      : Combiner::kSqrtN;
  if (combiner == Combiner::kSqrtN && spec.combiner != "sqrtn")
    return LayerError(spec, absl::StrCat("unknown combiner `", spec.combiner,
                                         "`; one of none, sum, mean, sqrtn"));
  if (weights != nullptr) {
    if (combiner == Combiner::kNone)
      return LayerError(spec, "weights need a combiner: sum, mean or sqrtn");
    if (inputs.size() != 1 || inputs[0] != *weights)
      return LayerError(spec,
                        absl::StrCat("weights need one input of ids, of their shape: weights=",
                                     weights->ToString(), " ids=", ShapeList(inputs)));
  }
  std::vector<std::uint64_t> dims = {dimension};
  if (combiner == Combiner::kNone && (inputs.size() > 1 || inputs[0].rank() == 1))
    dims.insert(dims.begin(), ids);
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape(spec, "its output", std::move(dims)));
  return std::unique_ptr<Embedding>(
      new Embedding(spec, inputs, std::move(output), dimension, combiner));
}

}  // namespace evergrad::worker
