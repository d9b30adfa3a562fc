// The second-order term of a factorization machine (Rendle, "Factorization Machines", ICDM 2010, lemma 3.1): the sum of the scalar
// products of all pairs of vectors, in linear time: 0.5 * sum over d of ((sum over f of v[f,d])^2 - sum over f of v[f,d]^2).
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class FactorizationMachine final : public MergeLayer {
 public:
  FactorizationMachine(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs)
      : MergeLayer(spec, "FactorizationMachine", inputs[0], tensor::Shape{1}),
        dimension_(inputs[0].dims().back()),
        sums_(dimension_),
        squares_(dimension_) {
    for (const tensor::Shape& input : inputs) fields_.push_back(input.elements() / dimension_);
  }

  void Merge(const Pass& pass, const std::vector<In>& inputs, Out y) override {
    for (std::size_t n = 0; n < static_cast<std::size_t>(pass.batch); ++n) {
      Sum(inputs, n, true);
      double sum = 0;
      for (std::size_t d = 0; d < dimension_; ++d) sum += static_cast<double>(sums_[d]) * sums_[d] - squares_[d];
      y[n] = static_cast<float>(0.5 * sum);
    }
  }
  void Unmerge(const Pass& pass, const std::vector<In>& inputs, In, In dy, std::size_t input, Out dx) override {
    for (std::size_t n = 0; n < static_cast<std::size_t>(pass.batch); ++n) {
      Sum(inputs, n, false);
      const float* v = inputs[input].data() + n * fields_[input] * dimension_;
      float* to = dx.data() + n * fields_[input] * dimension_;
      for (std::size_t f = 0; f < fields_[input]; ++f, v += dimension_, to += dimension_) {
        for (std::size_t d = 0; d < dimension_; ++d) to[d] = dy[n] * (sums_[d] - v[d]);
      }
    }
  }

 private:
  void Sum(const std::vector<In>& inputs, std::size_t n, bool squares) {
    sums_.assign(dimension_, 0);
    if (squares) squares_.assign(dimension_, 0);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const float* v = inputs[i].data() + n * fields_[i] * dimension_;
      for (std::size_t f = 0; f < fields_[i]; ++f, v += dimension_) {
        for (std::size_t d = 0; d < dimension_; ++d) sums_[d] += v[d];
        if (!squares) continue;
        for (std::size_t d = 0; d < dimension_; ++d) squares_[d] += v[d] * v[d];
      }
    }
  }

  const std::size_t dimension_;
  std::vector<std::size_t> fields_;    // by input
  std::vector<float> sums_, squares_;  // of one example
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeFactorizationMachine(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs) {
  std::uint64_t fields = 0;
  for (const tensor::Shape& input : inputs) {
    if ((input.rank() != 1 && input.rank() != 2) || input.dims().back() != inputs[0].dims().back())
      return LayerError(spec, absl::StrCat("factorization_machine needs vectors of one size, as inputs (dimension) or (fields, dimension); got ",
                                           ShapeList(inputs)));
    fields += input.rank() == 1 ? 1 : input[0];
  }
  if (fields < 2) return LayerError(spec, absl::StrCat("factorization_machine needs at least two vectors an example, got ", ShapeList(inputs)));
  return std::make_unique<FactorizationMachine>(spec, inputs);
}

}  // namespace evergrad::worker
