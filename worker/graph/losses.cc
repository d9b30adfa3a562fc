#include "worker/graph/losses.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layers/losses.h"
#include "common/layers/named.h"
#include "worker/layers/layer.h"

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
  return ErrorAt(spec.where, absl::StrCat("loss `", spec.type, "`: ", text));
}

absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output,
                              absl::string_view output_activation) {
  if (const absl::Status fits = config::CheckLoss(spec, output, output_activation); !fits.ok())
    return LossError(spec, fits.message());
  Loss loss;
  loss.type = config::FindBuilt(config::Losses(), spec.type)->kind;
  loss.from_logits = spec.from_logits;
  loss.columns = output.rank() == 0 ? 1 : static_cast<std::int64_t>(output.dims().back());
  loss.rows = static_cast<std::int64_t>(output.elements()) / loss.columns;
  return loss;
}

}  // namespace evergrad::worker
