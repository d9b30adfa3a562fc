// An activation as a separate layer. Softmax is over the last axis.
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(const LayerPlan& plan)
      : Layer(plan),
        activation_(ActivationOf(plan.spec)),
        columns_(plan.input().rank() == 0 ? 1
                                          : static_cast<std::int64_t>(plan.input().dims().back())),
        rows_per_example_(static_cast<std::int64_t>(plan.input().elements()) / columns_) {}

  void Forward(const Pass& pass, const std::vector<AnyIn>&, AnyIn x, AnyOut y) override {
    pass.backend.ActivationForward(activation_, pass.batch * rows_per_example_, columns_, x, y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn y, AnyOut dy, AnyOut dx,
                const std::vector<Out>&) override {
    if (!dx.empty())
      pass.backend.ActivationBackward(activation_, pass.batch * rows_per_example_, columns_, y, dy,
                                      dx);
  }

 private:
  const Activation activation_;
  const std::int64_t columns_, rows_per_example_;
};

}  // namespace

std::vector<LayerMaker> ActivationMakers() { return {{"activation", &MakeOf<ActivationLayer>}}; }

}  // namespace evergrad::worker
