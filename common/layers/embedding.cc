// The layer embedding reads ids of shape () or (n). The layer gives a row of its table for each id,
// or one row that combines the rows of an example.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layers/combiners.h"
#include "common/layers/families.h"
#include "common/layers/named.h"
#include "common/layers/shape_rules.h"

namespace evergrad::config {
namespace {

absl::StatusOr<LayerShapes> InferEmbedding(const LayerSpec& spec, const LayerInputs& inputs) {
  std::uint64_t ids = 0;
  for (const tensor::Shape& input : inputs.shapes) {
    if (input.rank() > 1)
      return ShapeError(
          spec, absl::StrCat("needs ids of shape () or (n), got ", ShapeList(inputs.shapes)));
    ids += input.elements();
  }
  const CombinerDescriptor* const combiner = FindBuilt(Combiners(), spec.combiner);
  if (combiner == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat("unknown combiner `", spec.combiner, "`; expected one of ",
                     absl::StrJoin(NamesOf(Combiners(), true), ", ")));
  const bool combines = combiner->kind != Combiner::kNone;
  if (inputs.weights) {
    if (!combines) return absl::InvalidArgumentError("weights need a combiner: sum, mean or sqrtn");
    if (inputs.shapes.size() != 1 || inputs.shapes[0] != *inputs.weights)
      return absl::InvalidArgumentError(
          absl::StrCat("weights need one input of ids with the shape of the weights: weights=",
                       inputs.weights->ToString(), " ids=", ShapeList(inputs.shapes)));
  }
  std::vector<std::uint64_t> dims = {inputs.dimension};
  if (!combines && (inputs.shapes.size() > 1 || inputs.shapes[0].rank() == 1))
    dims.insert(dims.begin(), ids);
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape("its output", std::move(dims)));
  return LayerShapes{std::move(output)};
}

}  // namespace

const std::vector<CombinerDescriptor>& Combiners() {
  static const std::vector<CombinerDescriptor> table = {{"none", true, Combiner::kNone},
                                                        {"sum", true, Combiner::kSum},
                                                        {"mean", true, Combiner::kMean},
                                                        {"sqrtn", true, Combiner::kSqrtN},
                                                        {"max", false, {}},
                                                        {"concat", false, {}}};
  return table;
}

std::vector<LayerDescriptor> EmbeddingLayers() {
  Key<LayerSpec> weights = PlainText<LayerSpec>(
      "weights", &LayerSpec::weights,
      "model input with a weight for each id of a bag. If omitted, every weight is 1");
  weights.type = "name of a model input";
  return {
      {.type = "embedding",
       .article = "an",
       .keras = "Embedding",
       .keys =
           {Required(
                PlainText<LayerSpec>("table", &LayerSpec::table, "name of one of model.tables")),
            Choice<LayerSpec>(
                "combiner", &LayerSpec::combiner, NamesOf(Combiners(), true),
                NamesOf(Combiners(), false), "embedding.",
                "how the rows of an example's ids (its bag) are combined. With `none`, the output "
                "has the shape [n, dimension] for n ids, or [dimension] for one id of shape []. A "
                "negative id is padding, which reads zeros and does not count in the combination"),
            std::move(weights)},
       .inputs = {1, InputCount::kAny},
       .reads_ids = true,
       .infer = &InferEmbedding,
       .example = {{"name", "user"},
                   {"table", "users"},
                   {"weights", "user_weights"},
                   {"input", "[user_id]"}}}};
}

}  // namespace evergrad::config
