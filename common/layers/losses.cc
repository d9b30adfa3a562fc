#include "common/layers/losses.h"

#include "common/layers/named.h"

namespace evergrad::config {
namespace {

Table<LossSpec> LossTable(const LossDescriptor& loss) {
  Table<LossSpec> table{absl::StrCat("the loss ", loss.name),
                        {},
                        {"weight", "label_smoothing", "reduction", "class_weight", "ignore_class"}};
  if (!loss.activation.empty())
    table.keys.push_back(
        Flag<LossSpec>("from_logits", &LossSpec::from_logits,
                       "whether the output consists of logits instead of probabilities"));
  Key<LossSpec> output =
      PlainText<LossSpec>("output", &LossSpec::output,
                          "the layer whose output the loss reads. If omitted, the last layer");
  output.type = "name of a layer";
  Key<LossSpec> labels = PlainText<LossSpec>("labels", &LossSpec::labels,
                                             "the field of the data that holds the labels");
  labels.type = "name of a field";
  table.keys.push_back(output);
  table.keys.push_back(labels);
  return table;
}

}  // namespace

const std::vector<LossDescriptor>& Losses() {
  static const std::vector<LossDescriptor> table = {
      {.name = "sparse_categorical_crossentropy",
       .kind = LossType::kSparseCategoricalCrossentropy,
       .has_classes = true,
       .activation = "softmax",
       .label_per_row = true,
       .classes_min = 2},
      {.name = "binary_crossentropy",
       .kind = LossType::kBinaryCrossentropy,
       .has_classes = true,
       .activation = "sigmoid"},
      {.name = "mean_squared_error", .kind = LossType::kMeanSquaredError},
      {"categorical_crossentropy", false},
      {"hinge", false},
      {"huber", false},
      {"mean_absolute_error", false},
      {"kl_divergence", false},
      {"cosine_similarity", false},
      {"poisson", false},
      {"sampled_softmax", false}};
  return table;
}

const Variant<LossSpec>& LossVariant() {
  static const Variant<LossSpec> variant = [] {
    Variant<LossSpec> v{"a loss", "type", &LossSpec::type, {}, NamesOf(Losses(), false), ""};
    for (const LossDescriptor& loss : Losses()) {
      if (!loss.built) continue;
      LossSpec defaults;
      defaults.type = loss.name;
      defaults.labels = "label";
      v.cases.push_back({loss.name, LossTable(loss), defaults});
    }
    return v;
  }();
  return variant;
}

absl::Status CheckLoss(const LossSpec& spec, const tensor::Shape& output,
                       absl::string_view output_activation) {
  const LossDescriptor* const loss = FindBuilt(Losses(), spec.type);
  if (loss == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("unknown type; expected one of ",
                                                   absl::StrJoin(NamesOf(Losses(), true), ", ")));
  const std::uint64_t classes = output.rank() == 0 ? 1 : output.dims().back();
  if (classes < loss->classes_min)
    return absl::InvalidArgumentError(absl::StrCat("needs at least ", loss->classes_min,
                                                   " classes in the last axis: output=`",
                                                   spec.output, "` shape=", output.ToString()));
  if (!spec.from_logits) return absl::OkStatus();
  if (loss->activation.empty())
    return absl::InvalidArgumentError("from_logits does not apply to this loss; remove the key");
  if (output_activation == loss->activation)
    return absl::InvalidArgumentError(absl::StrCat("from_logits is set, but output `", spec.output,
                                                   "` ends in ", loss->activation,
                                                   "; remove the key or the activation"));
  return absl::OkStatus();
}

std::uint64_t LabelElements(const LossDescriptor& loss, const tensor::Shape& output) {
  const std::uint64_t elements = output.elements();
  return loss.label_per_row && output.rank() > 0 ? elements / output.dims().back() : elements;
}

}  // namespace evergrad::config
