// y = activation(x · kernel + bias) over the last axis, as Keras: an input (28, 28, 3) gives (28,
// 28, units).
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dense final : public Layer {
 public:
  Dense(const config::LayerSpec& spec, const tensor::Shape& input, tensor::Shape output,
        Activation activation)
      : Layer(spec, "Dense", input, std::move(output)),
        activation_(activation),
        in_(static_cast<std::int64_t>(input.dims().back())),
        units_(static_cast<std::int64_t>(spec.units)),
        rows_per_example_(static_cast<std::int64_t>(input.elements()) / in_) {
    const std::uint64_t in = input.dims().back();
    AddKernel({in, spec.units}, spec.kernel_initializer, in, spec.units, spec.kernel_l2);
    if (spec.use_bias)
      AddVariable("bias", {spec.units}, spec.bias_initializer, spec.units, spec.units,
                  spec.bias_l2);
  }

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

absl::StatusOr<std::unique_ptr<Layer>> MakeDense(const config::LayerSpec& spec,
                                                 const tensor::Shape& input) {
  if (spec.units < 1) return LayerError(spec, "units must be at least 1: units=0");
  if (input.rank() < 1) return LayerError(spec, "dense needs an input of rank 1 or more, got ()");
  EG_ASSIGN_OR_RETURN(const Activation activation, ParseActivation(spec));
  EG_ASSIGN_OR_RETURN(const tensor::Shape kernel,
                      CheckedShape(spec, "its kernel", {input.dims().back(), spec.units}));
  std::vector<std::uint64_t> dims = input.dims();
  dims.back() = spec.units;
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape(spec, "its output", std::move(dims)));
  return std::make_unique<Dense>(spec, input, std::move(output), activation);
}

}  // namespace evergrad::worker
