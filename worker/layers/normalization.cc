// batch_normalization and layer_normalization over the last axis, as Keras: gamma, beta, and of the
// former the moving mean and variance that evaluation uses.
//
// While training, batch_normalization hands the mean and the variance of its batch out as the
// "gradients" of its moving averages: each step of any worker moves those on the servers
// (ps_server/optimizer, moving_average), under the same ledger as every other update. As Keras'
// fused kernel, an input (height, width, channels) gives the variance of the population (the sum of
// squares by rows - 1) to the moving one; other inputs that of the batch.
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
  In Gamma(const std::vector<AnyIn>& weights) const {
    return gamma_ < 0 ? In() : weights[static_cast<std::size_t>(gamma_)].floats();
  }
  Out Gamma(const std::vector<Out>& gradients) const {
    return gamma_ < 0 ? Out() : gradients[static_cast<std::size_t>(gamma_)];
  }
  In Beta(const std::vector<AnyIn>& weights) const {
    return beta_ < 0 ? In() : weights[static_cast<std::size_t>(beta_)].floats();
  }
  Out Beta(const std::vector<Out>& gradients) const {
    return beta_ < 0 ? Out() : gradients[static_cast<std::size_t>(beta_)];
  }
  std::int64_t Rows(const Pass& pass) const { return pass.batch * rows_per_example_; }

  const double epsilon_;
  const std::int64_t columns_, rows_per_example_;
  // Of the last Forward in training.
  absl::Status ReserveMoments(Backend& backend, std::int64_t each) {
    return ReserveState(backend, *this, 2 * static_cast<std::size_t>(each) * sizeof(float),
                        &moments_);
  }
  Out Mean(std::int64_t each) { return moments_.as<float>().first(static_cast<std::size_t>(each)); }
  Out Variance(std::int64_t each) {
    return moments_.as<float>().subspan(static_cast<std::size_t>(each),
                                        static_cast<std::size_t>(each));
  }

 private:
  int Add(absl::string_view suffix, std::uint64_t columns,
          const config::InitializerSpec& initializer, double l2) {
    AddVariable(suffix, {columns}, initializer, columns, columns, l2);
    return static_cast<int>(variables().size()) - 1;
  }
  int gamma_ = -1, beta_ = -1;  // positions in variables()
  Memory moments_;              // means, then variances
};

class BatchNormalization final : public Normalization {
 public:
  BatchNormalization(const config::LayerSpec& spec, const tensor::Shape& input)
      : Normalization(spec, "BatchNormalization", input),
        of_population_(input.rank() == 3),
        moving_mean_(variables().size()) {
    AddMovingAverage("moving_mean", input.dims().back(), spec.moving_mean_initializer,
                     spec.momentum);
    AddMovingAverage("moving_variance", input.dims().back(), spec.moving_variance_initializer,
                     spec.momentum);
  }

  absl::Status Reserve(Backend& backend, std::int64_t) override {
    return ReserveMoments(backend, columns_);
  }

  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) override {
    if (pass.training)
      pass.backend.BatchNormForward(Rows(pass), columns_, epsilon_, x, Gamma(weights),
                                    Beta(weights), Mean(columns_), Variance(columns_), y);
    else
      pass.backend.BatchNormInference(Rows(pass), columns_, epsilon_, x, Gamma(weights),
                                      Beta(weights), weights[moving_mean_].floats(),
                                      weights[moving_mean_ + 1].floats(), y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) override {
    const std::int64_t rows = Rows(pass);
    pass.backend.BatchNormBackward(rows, columns_, epsilon_, x, Gamma(weights), Mean(columns_),
                                   Variance(columns_), dy, dx, Gamma(gradients), Beta(gradients));
    pass.backend.Copy(Mean(columns_), gradients[moving_mean_]);
    const float correction =
        of_population_ && rows > 1
            ? static_cast<float>(static_cast<double>(rows) / static_cast<double>(rows - 1))
            : 1.0f;
    pass.backend.Scale(correction, Variance(columns_), gradients[moving_mean_ + 1]);
  }

 private:
  const bool of_population_;
  const std::size_t moving_mean_;  // its position in variables(); the variance is behind it
};

class LayerNormalization final : public Normalization {
 public:
  LayerNormalization(const config::LayerSpec& spec, const tensor::Shape& input)
      : Normalization(spec, "LayerNormalization", input) {}

  absl::Status Reserve(Backend& backend, std::int64_t batch) override {
    return ReserveMoments(backend, batch * rows_per_example_);
  }
  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) override {
    const std::int64_t rows = Rows(pass);
    pass.backend.LayerNormForward(rows, columns_, epsilon_, x, Gamma(weights), Beta(weights),
                                  Mean(rows), Variance(rows), y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) override {
    const std::int64_t rows = Rows(pass);
    pass.backend.LayerNormBackward(rows, columns_, epsilon_, x, Gamma(weights), Mean(rows),
                                   Variance(rows), dy, dx, Gamma(gradients), Beta(gradients));
  }
};

absl::Status CheckInput(const config::LayerSpec& spec, const tensor::Shape& input) {
  if (input.rank() < 1)
    return LayerError(spec, absl::StrCat(spec.type, " needs an input of rank 1 or more, got ()"));
  if (!(spec.epsilon > 0))
    return LayerError(spec, absl::StrCat("epsilon must be above 0: epsilon=", spec.epsilon));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNormalization(const config::LayerSpec& spec,
                                                              const tensor::Shape& input) {
  EG_RETURN_IF_ERROR(CheckInput(spec, input));
  if (!(spec.momentum >= 0 && spec.momentum < 1))
    return LayerError(spec, absl::StrCat("momentum must be in [0, 1): momentum=", spec.momentum));
  return std::make_unique<BatchNormalization>(spec, input);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNormalization(const config::LayerSpec& spec,
                                                              const tensor::Shape& input) {
  EG_RETURN_IF_ERROR(CheckInput(spec, input));
  return std::make_unique<LayerNormalization>(spec, input);
}

}  // namespace evergrad::worker
