// batch_normalization and layer_normalization over the last axis, as Keras: gamma, beta, and of the former the moving mean and variance that
// evaluation uses.
//
// While training, batch_normalization hands the mean and the variance of its batch out as the "gradients" of its moving averages: each step of any
// worker moves those on the servers (ps_server/optimizer, moving_average), under the same ledger as every other update. As Keras' fused kernel, an
// input (height, width, channels) gives the variance of the population (the sum of squares by rows - 1) to the moving one; other inputs that of the
// batch.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Normalization : public Layer {
 public:
  Normalization(const config::LayerSpec& spec, absl::string_view type, const tensor::Shape& input)
      : Layer(spec, type, input, input),
        epsilon_(spec.epsilon),
        columns_(static_cast<std::int64_t>(input.dims().back())),
        rows_per_example_(static_cast<std::int64_t>(input.elements()) / columns_) {
    const std::uint64_t columns = input.dims().back();
    if (spec.scale) gamma_ = Add("gamma", columns, spec.gamma_initializer, spec.gamma_l2);
    if (spec.center) beta_ = Add("beta", columns, spec.beta_initializer, spec.beta_l2);
  }

 protected:
  template <typename Span>
  Span Gamma(const std::vector<Span>& spans) const {
    return gamma_ < 0 ? Span() : spans[static_cast<std::size_t>(gamma_)];
  }
  template <typename Span>
  Span Beta(const std::vector<Span>& spans) const {
    return beta_ < 0 ? Span() : spans[static_cast<std::size_t>(beta_)];
  }
  std::int64_t Rows(const Pass& pass) const { return pass.batch * rows_per_example_; }

  const double epsilon_;
  const std::int64_t columns_, rows_per_example_;
  std::vector<float> mean_, variance_;  // of the last Forward in training

 private:
  int Add(absl::string_view suffix, std::uint64_t columns, const config::InitializerSpec& initializer, double l2) {
    AddVariable(suffix, {columns}, initializer, columns, columns, l2);
    return static_cast<int>(variables().size()) - 1;
  }
  int gamma_ = -1, beta_ = -1;  // positions in variables()
};

class BatchNormalization final : public Normalization {
 public:
  BatchNormalization(const config::LayerSpec& spec, const tensor::Shape& input)
      : Normalization(spec, "BatchNormalization", input), of_population_(input.rank() == 3), moving_mean_(variables().size()) {
    AddMovingAverage("moving_mean", input.dims().back(), spec.moving_mean_initializer, spec.momentum);
    AddMovingAverage("moving_variance", input.dims().back(), spec.moving_variance_initializer, spec.momentum);
    mean_.resize(input.dims().back());
    variance_.resize(input.dims().back());
  }

  void Forward(const Pass& pass, const std::vector<In>& weights, In x, Out y) override {
    if (pass.training)
      pass.backend.BatchNormForward(Rows(pass), columns_, epsilon_, x, Gamma(weights), Beta(weights), mean_, variance_, y);
    else
      pass.backend.BatchNormInference(Rows(pass), columns_, epsilon_, x, Gamma(weights), Beta(weights), weights[moving_mean_],
                                      weights[moving_mean_ + 1], y);
  }
  void Backward(const Pass& pass, const std::vector<In>& weights, In x, In, Out dy, Out dx, const std::vector<Out>& gradients) override {
    const std::int64_t rows = Rows(pass);
    pass.backend.BatchNormBackward(rows, columns_, epsilon_, x, Gamma(weights), mean_, variance_, dy, dx, Gamma(gradients), Beta(gradients));
    std::copy(mean_.begin(), mean_.end(), gradients[moving_mean_].begin());
    const float correction = of_population_ && rows > 1 ? static_cast<float>(static_cast<double>(rows) / static_cast<double>(rows - 1)) : 1.0f;
    std::transform(variance_.begin(), variance_.end(), gradients[moving_mean_ + 1].begin(), [&](float v) { return v * correction; });
  }

 private:
  const bool of_population_;
  const std::size_t moving_mean_;  // its position in variables(); the variance is behind it
};

class LayerNormalization final : public Normalization {
 public:
  LayerNormalization(const config::LayerSpec& spec, const tensor::Shape& input) : Normalization(spec, "LayerNormalization", input) {}

  void Forward(const Pass& pass, const std::vector<In>& weights, In x, Out y) override {
    const std::size_t rows = static_cast<std::size_t>(Rows(pass));
    if (mean_.size() < rows) mean_.resize(rows), variance_.resize(rows);
    pass.backend.LayerNormForward(Rows(pass), columns_, epsilon_, x, Gamma(weights), Beta(weights), Out(mean_).first(rows), Out(variance_).first(rows),
                                  y);
  }
  void Backward(const Pass& pass, const std::vector<In>& weights, In x, In, Out dy, Out dx, const std::vector<Out>& gradients) override {
    const std::size_t rows = static_cast<std::size_t>(Rows(pass));
    pass.backend.LayerNormBackward(Rows(pass), columns_, epsilon_, x, Gamma(weights), In(mean_).first(rows), In(variance_).first(rows), dy, dx,
                                   Gamma(gradients), Beta(gradients));
  }
};

absl::Status CheckInput(const config::LayerSpec& spec, const tensor::Shape& input) {
  if (input.rank() < 1) return LayerError(spec, absl::StrCat(spec.type, " needs an input of rank 1 or more, got ()"));
  if (!(spec.epsilon > 0)) return LayerError(spec, absl::StrCat("epsilon must be above 0: epsilon=", spec.epsilon));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNormalization(const config::LayerSpec& spec, const tensor::Shape& input) {
  EG_RETURN_IF_ERROR(CheckInput(spec, input));
  if (!(spec.momentum >= 0 && spec.momentum < 1)) return LayerError(spec, absl::StrCat("momentum must be in [0, 1): momentum=", spec.momentum));
  return std::make_unique<BatchNormalization>(spec, input);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNormalization(const config::LayerSpec& spec, const tensor::Shape& input) {
  EG_RETURN_IF_ERROR(CheckInput(spec, input));
  return std::make_unique<LayerNormalization>(spec, input);
}

}  // namespace evergrad::worker
