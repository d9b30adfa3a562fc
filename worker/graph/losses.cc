#include "worker/graph/losses.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {
namespace {

// Keras' backend.epsilon(): probabilities are kept this far from 0 and 1.
constexpr double kEpsilon = 1e-7;

double Clip(double probability) { return std::clamp(probability, kEpsilon, 1.0 - kEpsilon); }
// clip_by_value passes the gradient inside its bounds only.
bool Clipped(double probability) { return probability < kEpsilon || probability > 1.0 - kEpsilon; }

absl::Status LabelError(double value, std::int64_t example, absl::string_view expected) {
  return UserError(absl::InvalidArgumentError(absl::StrCat("label out of range: value=", value, " ", expected, " example_in_batch=", example)));
}

std::int64_t ArgMax(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// One row of logits: -log softmax[label]; gradient = softmax - onehot.
double SparseFromLogits(std::span<const float> row, std::size_t label, double scale, std::span<float> gradient) {
  const float largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    const float e = std::exp(row[c] - largest);
    sum += e;
    if (!gradient.empty()) gradient[c] = e;
  }
  if (!gradient.empty()) {
    const double factor = scale / sum;
    for (float& g : gradient) g = static_cast<float>(g * factor);
    gradient[label] -= static_cast<float>(scale);
  }
  return std::log(sum) - (static_cast<double>(row[label]) - largest);
}

// One row of probabilities. Keras clips them, takes the logarithm and hands that on as logits, which divides by their sum again.
double SparseFromProbabilities(std::span<const float> row, std::size_t label, double scale, std::span<float> gradient) {
  double sum = 0;
  for (const float p : row) sum += Clip(p);
  if (!gradient.empty()) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const double g = 1.0 / sum - (c == label ? 1.0 / Clip(row[c]) : 0.0);
      gradient[c] = Clipped(row[c]) ? 0.0f : static_cast<float>(scale * g);
    }
  }
  return std::log(sum) - std::log(Clip(row[label]));
}

absl::StatusOr<LossValue> SparseCategorical(const Loss& loss, std::int64_t batch, std::span<const float> output, std::span<const float> labels,
                                            std::span<float> gradient) {
  LossValue value;
  const std::size_t columns = static_cast<std::size_t>(loss.columns);
  const double scale = 1.0 / static_cast<double>(batch * loss.rows);
  for (std::int64_t example = 0; example < batch; ++example) {
    double sum = 0;
    bool correct = true;
    for (std::int64_t r = 0; r < loss.rows; ++r) {
      const std::size_t at = static_cast<std::size_t>(example * loss.rows + r);
      const float label = labels[at];
      if (!(label >= 0 && label < static_cast<float>(loss.columns)) || label != std::floor(label)) {
        return LabelError(label, example, absl::StrCat("classes=", loss.columns));
      }
      const std::size_t index = static_cast<std::size_t>(label);
      const auto row = output.subspan(at * columns, columns);
      const auto row_gradient = gradient.empty() ? gradient : gradient.subspan(at * columns, columns);
      sum += loss.from_logits ? SparseFromLogits(row, index, scale, row_gradient) : SparseFromProbabilities(row, index, scale, row_gradient);
      correct = correct && loss.accuracy && ArgMax(row) == static_cast<std::int64_t>(index);
    }
    value.sum += sum / static_cast<double>(loss.rows);
    value.correct += loss.accuracy && correct ? 1 : 0;
  }
  return value;
}

absl::StatusOr<LossValue> Binary(const Loss& loss, std::int64_t batch, std::span<const float> output, std::span<const float> labels,
                                 std::span<float> gradient) {
  LossValue value;
  const std::int64_t elements = loss.label_elements();
  const double scale = 1.0 / static_cast<double>(batch * elements);
  for (std::int64_t example = 0; example < batch; ++example) {
    double sum = 0;
    bool correct = true;
    for (std::int64_t e = 0; e < elements; ++e) {
      const std::size_t at = static_cast<std::size_t>(example * elements + e);
      const double t = labels[at], x = output[at];
      if (!(t >= 0 && t <= 1)) return LabelError(t, example, "want=0..1");
      if (loss.from_logits) {
        sum += std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x)));
        if (!gradient.empty()) gradient[at] = static_cast<float>(scale * (1.0 / (1.0 + std::exp(-x)) - t));
      } else {
        // Keras adds epsilon inside the logarithms, after clipping.
        const double p = Clip(x);
        sum -= t * std::log(p + kEpsilon) + (1.0 - t) * std::log(1.0 - p + kEpsilon);
        if (!gradient.empty()) gradient[at] = Clipped(x) ? 0.0f : static_cast<float>(scale * ((1.0 - t) / (1.0 - p + kEpsilon) - t / (p + kEpsilon)));
      }
      const bool predicted = x > (loss.from_logits ? 0.0 : 0.5);  // a logit of 0 is a probability of 0.5
      correct = correct && predicted == (t > 0.5);
    }
    value.sum += sum / static_cast<double>(elements);
    value.correct += loss.accuracy && correct ? 1 : 0;
  }
  return value;
}

LossValue MeanSquared(const Loss& loss, std::int64_t batch, std::span<const float> output, std::span<const float> labels, std::span<float> gradient) {
  LossValue value;
  const std::int64_t elements = loss.label_elements();
  const double scale = 1.0 / static_cast<double>(batch * elements);
  for (std::int64_t example = 0; example < batch; ++example) {
    double sum = 0;
    for (std::int64_t e = 0; e < elements; ++e) {
      const std::size_t at = static_cast<std::size_t>(example * elements + e);
      const double difference = static_cast<double>(output[at]) - labels[at];
      sum += difference * difference;
      if (!gradient.empty()) gradient[at] = static_cast<float>(2.0 * scale * difference);
    }
    value.sum += sum / static_cast<double>(elements);
  }
  return value;
}

}  // namespace

absl::StatusOr<LossValue> ComputeLoss(const Loss& loss, std::int64_t batch, std::span<const float> output, std::span<const float> labels,
                                      std::span<float> gradient) {
  switch (loss.type) {
    case LossType::kSparseCategoricalCrossentropy: return SparseCategorical(loss, batch, output, labels, gradient);
    case LossType::kBinaryCrossentropy: return Binary(loss, batch, output, labels, gradient);
    case LossType::kMeanSquaredError: return MeanSquared(loss, batch, output, labels, gradient);
  }
  return absl::InternalError("unreachable loss type");
}

absl::Status LossError(const config::LossSpec& spec, absl::string_view text) {
  const config::Location& at = spec.where;
  const std::string place = at.file.empty() ? "" : absl::StrCat(at.file, ":", at.line, ":", at.column, ": ");
  return UserError(absl::InvalidArgumentError(absl::StrCat(place, "loss `", spec.type, "`: ", text)));
}

absl::StatusOr<Loss> MakeLoss(const config::LossSpec& spec, const tensor::Shape& output, absl::string_view output_activation) {
  Loss loss;
  loss.from_logits = spec.from_logits;
  loss.columns = output.rank() == 0 ? 1 : static_cast<std::int64_t>(output.dims().back());
  loss.rows = static_cast<std::int64_t>(output.elements()) / loss.columns;
  absl::string_view spoiler;  // the activation that has already turned logits into probabilities
  if (spec.type == "sparse_categorical_crossentropy") {
    loss.type = LossType::kSparseCategoricalCrossentropy;
    spoiler = "softmax";
    if (loss.columns < 2)
      return LossError(spec, absl::StrCat("needs at least 2 classes in the last axis; output `", spec.output, "` is ", output.ToString()));
  } else if (spec.type == "binary_crossentropy") {
    loss.type = LossType::kBinaryCrossentropy;
    spoiler = "sigmoid";
  } else if (spec.type == "mean_squared_error") {
    loss.type = LossType::kMeanSquaredError;
    if (spec.from_logits) return LossError(spec, "from_logits has no meaning for it; remove the key");
  } else {
    return LossError(spec, "unknown; one of sparse_categorical_crossentropy, binary_crossentropy, mean_squared_error");
  }
  if (spec.from_logits && output_activation == spoiler) {
    return LossError(spec, absl::StrCat("from_logits is set, but output `", spec.output, "` ends in ", spoiler, "; remove one of the two"));
  }
  return loss;
}

}  // namespace evergrad::worker
