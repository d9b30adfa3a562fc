#include "worker/backend/cpu/losses.h"

#include <algorithm>
#include <cmath>

namespace evergrad::worker::cpu {
namespace {

// Keras' backend.epsilon(): the minimum distance of probabilities from 0 and 1.
constexpr double kEpsilon = 1e-7;

double Clip(double probability) { return std::clamp(probability, kEpsilon, 1.0 - kEpsilon); }
// Returns whether a probability was clipped. clip_by_value passes no gradient to a clipped value.
bool Clipped(double probability) { return probability < kEpsilon || probability > 1.0 - kEpsilon; }

std::int64_t ArgMax(In row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// Computes one row of logits: -log softmax[label]; gradient = softmax - onehot.
double SparseFromLogits(In row, std::size_t label, double scale, Out gradient) {
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

// Computes one row of probabilities. Keras clips the probabilities and uses their logarithms as
// logits. The softmax of these logits divides the clipped probabilities by their sum.
double SparseFromProbabilities(In row, std::size_t label, double scale, Out gradient) {
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

LossResult BadLabel(std::size_t at, double value, Out gradient) {
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  return {0, 0, static_cast<std::int64_t>(at), value};
}

LossResult SparseCategorical(const Loss& loss, std::int64_t batch, In output, In labels,
                             Out gradient) {
  LossResult result{0, 0, -1, 0};
  const std::size_t columns = static_cast<std::size_t>(loss.columns);
  const double scale = 1.0 / static_cast<double>(batch * loss.rows);
  for (std::int64_t example = 0; example < batch; ++example) {
    double sum = 0;
    bool correct = true;
    for (std::int64_t r = 0; r < loss.rows; ++r) {
      const std::size_t at = static_cast<std::size_t>(example * loss.rows + r);
      const float label = labels[at];
      if (!(label >= 0 && label < static_cast<float>(loss.columns)) || label != std::floor(label))
        return BadLabel(at, label, gradient);
      const std::size_t index = static_cast<std::size_t>(label);
      const In row = output.subspan(at * columns, columns);
      const Out row_gradient =
          gradient.empty() ? gradient : gradient.subspan(at * columns, columns);
      sum += loss.from_logits ? SparseFromLogits(row, index, scale, row_gradient)
                              : SparseFromProbabilities(row, index, scale, row_gradient);
      correct = correct && loss.accuracy && ArgMax(row) == static_cast<std::int64_t>(index);
    }
    result.sum += sum / static_cast<double>(loss.rows);
    result.correct += loss.accuracy && correct ? 1 : 0;
  }
  return result;
}

LossResult Binary(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient) {
  LossResult result{0, 0, -1, 0};
  const std::int64_t elements = loss.label_elements();
  const double scale = 1.0 / static_cast<double>(batch * elements);
  for (std::int64_t example = 0; example < batch; ++example) {
    double sum = 0;
    bool correct = true;
    for (std::int64_t e = 0; e < elements; ++e) {
      const std::size_t at = static_cast<std::size_t>(example * elements + e);
      const double t = labels[at], x = output[at];
      if (!(t >= 0 && t <= 1)) return BadLabel(at, t, gradient);
      if (loss.from_logits) {
        sum += std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x)));
        if (!gradient.empty())
          gradient[at] = static_cast<float>(scale * (1.0 / (1.0 + std::exp(-x)) - t));
      } else {
        // Keras adds epsilon inside the logarithms, after clipping.
        const double p = Clip(x);
        sum -= t * std::log(p + kEpsilon) + (1.0 - t) * std::log(1.0 - p + kEpsilon);
        if (!gradient.empty())
          gradient[at] = Clipped(x) ? 0.0f
                                    : static_cast<float>(scale * ((1.0 - t) / (1.0 - p + kEpsilon) -
                                                                  t / (p + kEpsilon)));
      }
      // A logit of 0 is a probability of 0.5.
      const bool predicted = x > (loss.from_logits ? 0.0 : 0.5);
      correct = correct && predicted == (t > 0.5);
    }
    result.sum += sum / static_cast<double>(elements);
    result.correct += loss.accuracy && correct ? 1 : 0;
  }
  return result;
}

LossResult MeanSquared(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient) {
  if (!gradient.empty()) {
    const double scale = 1.0 / static_cast<double>(batch * loss.label_elements());
    for (std::size_t i = 0; i < output.size(); ++i)
      gradient[i] = static_cast<float>(2.0 * scale * (static_cast<double>(output[i]) - labels[i]));
  }
  return {SumOfMeanSquares(batch, loss.label_elements(), output, labels), 0, -1, 0};
}

}  // namespace

LossResult ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient) {
  switch (loss.type) {
    case LossType::kSparseCategoricalCrossentropy:
      return SparseCategorical(loss, batch, output, labels, gradient);
    case LossType::kBinaryCrossentropy: return Binary(loss, batch, output, labels, gradient);
    case LossType::kMeanSquaredError: break;
  }
  return MeanSquared(loss, batch, output, labels, gradient);
}

void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) {
  std::fill(counts.begin(), counts.end(), 0);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double x = output[i];
    const double p = from_logits ? 1.0 / (1.0 + std::exp(-x)) : x;
    // NaN is counted in the first bin. The step's check for non-finite values reports the NaN.
    const double bin = std::ceil(p * kAucBins) - 1;
    const int b = bin > 0 ? static_cast<int>(std::min<double>(bin, kAucBins - 1)) : 0;
    ++counts[static_cast<std::size_t>(b + (labels[i] > 0.5f ? 0 : kAucBins))];
  }
}

double SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels) {
  const std::size_t width = static_cast<std::size_t>(elements);
  double sum = 0;
  for (std::size_t n = 0; n < static_cast<std::size_t>(batch); ++n) {
    double example = 0;
    for (std::size_t i = n * width; i < (n + 1) * width; ++i) {
      const double difference = static_cast<double>(output[i]) - labels[i];
      example += difference * difference;
    }
    sum += example / static_cast<double>(elements);
  }
  return sum;
}

}  // namespace evergrad::worker::cpu
