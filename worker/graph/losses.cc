#include "worker/graph/losses.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {
absl::Status CheckLabels(const Loss& loss, const LossResult& result) {
  if (result.bad_label < 0) return absl::OkStatus();
  const std::string expected = loss.type == LossType::kSparseCategoricalCrossentropy
                                   ? absl::StrCat("classes=", loss.columns)
                                   : "want=0..1";
  return UserError(absl::InvalidArgumentError(
      absl::StrCat("label out of range: value=", result.bad_value, " ", expected,
                   " example_in_batch=", result.bad_label / loss.label_elements())));
}

absl::Status LossError(const config::LossSpec& spec, absl::string_view text) {
  const config::Location& at = spec.where;
  const std::string place =
      at.file.empty() ? "" : absl::StrCat(at.file, ":", at.line, ":", at.column, ": ");
  return UserError(
      absl::InvalidArgumentError(absl::StrCat(place, "loss `", spec.type, "`: ", text)));
}

absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output,
                              absl::string_view output_activation) {
  Loss loss;
  loss.from_logits = spec.from_logits;
  loss.columns = output.rank() == 0 ? 1 : static_cast<std::int64_t>(output.dims().back());
  loss.rows = static_cast<std::int64_t>(output.elements()) / loss.columns;
  absl::string_view spoiler;  // the activation that has already turned logits into probabilities
  if (spec.type == "sparse_categorical_crossentropy") {
    loss.type = LossType::kSparseCategoricalCrossentropy;
    spoiler = "softmax";
    if (loss.columns < 2)
      return LossError(spec, absl::StrCat("needs at least 2 classes in the last axis; output `",
                                          spec.output, "` is ", output.ToString()));
  } else if (spec.type == "binary_crossentropy") {
    loss.type = LossType::kBinaryCrossentropy;
    spoiler = "sigmoid";
  } else if (spec.type == "mean_squared_error") {
    loss.type = LossType::kMeanSquaredError;
    if (spec.from_logits)
      return LossError(spec, "from_logits has no meaning for it; remove the key");
  } else {
    return LossError(
        spec,
        "unknown; one of sparse_categorical_crossentropy, binary_crossentropy, mean_squared_error");
  }
  if (spec.from_logits && output_activation == spoiler) {
    return LossError(spec, absl::StrCat("from_logits is set, but output `", spec.output,
                                        "` ends in ", spoiler, "; remove one of the two"));
  }
  return loss;
}

}  // namespace evergrad::worker
