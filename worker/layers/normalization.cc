// The layers batch_normalization and layer_normalization over the last axis, as in Keras, with
// gamma, beta, and for batch_normalization the moving mean and variance that evaluation uses.
//
// In training, batch_normalization returns the mean and the variance of its batch as the
// "gradients" of its moving averages. The worker pushes these values like gradients, and the
// servers move the averages towards them (ps_server/optimizer, moving_average). The ledger records
// such a push like any other. As with Keras' fused kernel, an input (height, width, channels)
// contributes an estimate of the population's variance to the moving variance: the sum of squares
// divided by rows - 1. Other inputs contribute the variance of the batch.
#include <vector>

#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Normalization : public Layer {
 public:
  explicit Normalization(const LayerPlan& plan)
      : Layer(plan),
        epsilon_(plan.spec.epsilon),
        columns_(static_cast<std::int64_t>(plan.input().dims().back())),
        rows_per_example_(static_cast<std::int64_t>(plan.input().elements()) / columns_),
        gamma_(plan.spec.scale ? 0 : -1),
        beta_(!plan.spec.center ? -1
              : plan.spec.scale ? 1
                                : 0) {}

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
  // Allocates memory for the moments of the last Forward in training.
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
  const int gamma_, beta_;  // positions in variables(); -1 if not learned
  Memory moments_;          // means, then variances
};

class BatchNormalization final : public Normalization {
 public:
  explicit BatchNormalization(const LayerPlan& plan)
      : Normalization(plan),
        of_population_(plan.input().rank() == 3),
        moving_mean_(variables().size() - 2) {}

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
  const std::size_t moving_mean_;  // position in variables(); the variance follows it
};

class LayerNormalization final : public Normalization {
 public:
  using Normalization::Normalization;

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

}  // namespace

std::vector<LayerMaker> NormalizationMakers() {
  return {{"batch_normalization", &MakeOf<BatchNormalization>},
          {"layer_normalization", &MakeOf<LayerNormalization>}};
}

}  // namespace evergrad::worker
