#include "worker/layers/embedding.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace evergrad::worker {

Embedding::Embedding(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs, tensor::Shape output, std::size_t dimension,
                     Combiner combiner)
    : MergeLayer(spec, "Embedding", inputs[0], std::move(output)), dimension_(dimension), combiner_(combiner) {
  for (const tensor::Shape& input : inputs) {
    widths_.push_back(static_cast<std::size_t>(input.elements()));
    ids_ += widths_.back();
  }
}

absl::StatusOr<std::unique_ptr<Embedding>> Embedding::Make(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs,
                                                           const tensor::Shape* weights, std::uint32_t dimension) {
  std::uint64_t ids = 0;
  for (const tensor::Shape& input : inputs) {
    if (input.rank() > 1) return LayerError(spec, absl::StrCat("embedding needs ids of shape () or (n), got ", ShapeList(inputs)));
    ids += input.elements();
  }
  const Combiner combiner = spec.combiner == "none"   ? Combiner::kNone
                            : spec.combiner == "sum"  ? Combiner::kSum
                            : spec.combiner == "mean" ? Combiner::kMean
                                                      : Combiner::kSqrtN;
  if (combiner == Combiner::kSqrtN && spec.combiner != "sqrtn")
    return LayerError(spec, absl::StrCat("unknown combiner `", spec.combiner, "`; one of none, sum, mean, sqrtn"));
  if (weights != nullptr) {
    if (combiner == Combiner::kNone) return LayerError(spec, "weights need a combiner: sum, mean or sqrtn");
    if (inputs.size() != 1 || inputs[0] != *weights)
      return LayerError(spec,
                        absl::StrCat("weights need one input of ids, of their shape: weights=", weights->ToString(), " ids=", ShapeList(inputs)));
  }
  std::vector<std::uint64_t> dims = {dimension};
  if (combiner == Combiner::kNone && (inputs.size() > 1 || inputs[0].rank() == 1)) dims.insert(dims.begin(), ids);
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape(spec, "its output", std::move(dims)));
  return std::unique_ptr<Embedding>(new Embedding(spec, inputs, std::move(output), dimension, combiner));
}

template <typename Row>
void Embedding::ForEach(std::size_t batch, std::size_t n, std::span<const std::uint32_t> position, In weights, Row row) const {
  std::size_t begin = 0, element = 0;
  for (const std::size_t width : widths_) {
    for (std::size_t e = 0; e < width; ++e, ++element) {
      const std::size_t at = begin + n * width + e;
      row(position[at], element, weights.empty() ? 1.0f : weights[at]);
    }
    begin += batch * width;
  }
}

double Embedding::Scale(std::size_t batch, std::size_t n, std::span<const std::uint32_t> position, In weights) const {
  if (combiner_ == Combiner::kNone || combiner_ == Combiner::kSum) return 1;
  double sum = 0;
  ForEach(batch, n, position, weights, [&](std::uint32_t p, std::size_t, float w) {
    if (p != kAbsent) sum += combiner_ == Combiner::kMean ? w : static_cast<double>(w) * w;
  });
  if (combiner_ == Combiner::kSqrtN) sum = std::sqrt(sum);
  return sum == 0 ? 0 : 1 / sum;
}

void Embedding::Gather(std::int64_t batch, std::span<const std::uint32_t> position, In rows, In weights, Out y) const {
  const std::size_t examples = static_cast<std::size_t>(batch), stride = static_cast<std::size_t>(output_shape().elements());
  for (std::size_t n = 0; n < examples; ++n) {
    float* out = y.data() + n * stride;
    if (combiner_ != Combiner::kNone) std::fill_n(out, dimension_, 0.0f);
    const float scale = static_cast<float>(Scale(examples, n, position, weights));
    ForEach(examples, n, position, weights, [&](std::uint32_t p, std::size_t element, float w) {
      const bool absent = p == kAbsent;
      const float* row = absent ? nullptr : rows.data() + static_cast<std::size_t>(p) * dimension_;
      if (combiner_ == Combiner::kNone) {
        float* to = out + element * dimension_;
        if (absent)
          std::fill_n(to, dimension_, 0.0f);
        else
          std::copy_n(row, dimension_, to);
      } else if (!absent) {
        const float factor = w * scale;
        for (std::size_t d = 0; d < dimension_; ++d) out[d] += factor * row[d];
      }
    });
  }
}

void Embedding::Scatter(std::int64_t batch, std::span<const std::uint32_t> position, In weights, In dy, Out row_gradients) const {
  const std::size_t examples = static_cast<std::size_t>(batch), stride = static_cast<std::size_t>(output_shape().elements());
  for (std::size_t n = 0; n < examples; ++n) {
    const float* from = dy.data() + n * stride;
    const float scale = static_cast<float>(Scale(examples, n, position, weights));
    ForEach(examples, n, position, weights, [&](std::uint32_t p, std::size_t element, float w) {
      if (p == kAbsent) return;
      float* to = row_gradients.data() + static_cast<std::size_t>(p) * dimension_;
      const float* g = combiner_ == Combiner::kNone ? from + element * dimension_ : from;
      const float factor = combiner_ == Combiner::kNone ? 1.0f : w * scale;
      for (std::size_t d = 0; d < dimension_; ++d) to[d] += factor * g[d];
    });
  }
}

}  // namespace evergrad::worker
