// An activation as a layer of its own. Softmax is over the last axis.
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class ActivationLayer final : public Layer {
 public:
  ActivationLayer(const config::LayerSpec& spec, const tensor::Shape& input, Activation activation)
      : Layer(spec, "Activation", input, input),
        activation_(activation),
        columns_(input.rank() == 0 ? 1 : static_cast<std::int64_t>(input.dims().back())),
        rows_per_example_(static_cast<std::int64_t>(input.elements()) / columns_) {}

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

absl::StatusOr<std::unique_ptr<Layer>> MakeActivation(const config::LayerSpec& spec,
                                                      const tensor::Shape& input) {
  EG_ASSIGN_OR_RETURN(const Activation activation, ParseActivation(spec));
  return std::make_unique<ActivationLayer>(spec, input, activation);
}

}  // namespace evergrad::worker
