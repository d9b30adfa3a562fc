// y = activation(x · kernel + bias) over the last axis, as in Keras: an input (28, 28, 3) gives
// (28, 28, units).
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dense final : public Layer {
 public:
  explicit Dense(const LayerPlan& plan)
      : Layer(plan),
        activation_(ActivationOf(plan.spec)),
        in_(static_cast<std::int64_t>(plan.input().dims().back())),
        units_(static_cast<std::int64_t>(plan.spec.units)),
        rows_per_example_(static_cast<std::int64_t>(plan.input().elements()) / in_) {}

  Computes computes() const override { return Computes::kProducts; }
  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) override {
    pass.backend.DenseForward(pass.batch * rows_per_example_, in_, units_, x, weights[0],
                              weights.size() > 1 ? weights[1].floats() : In(), activation_, y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) override {
    const std::int64_t rows = pass.batch * rows_per_example_;
    pass.backend.DenseBackward(rows, in_, units_, x, weights[0], activation_, y, dy, dx,
                               gradients[0], gradients.size() > 1 ? gradients[1] : Out());
  }

 private:
  const Activation activation_;
  const std::int64_t in_, units_, rows_per_example_;
};

}  // namespace

std::vector<LayerMaker> DenseMakers() { return {{"dense", &MakeOf<Dense>}}; }

}  // namespace evergrad::worker
