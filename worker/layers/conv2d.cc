// A convolution over NHWC with an HWIO kernel, TensorFlow's padding.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Conv2d final : public Layer {
 public:
  Conv2d(const config::LayerSpec& spec, const tensor::Shape& input, tensor::Shape output,
         const Conv2dShape& shape, Activation activation)
      : Layer(spec, "Conv2D", input, std::move(output)), shape_(shape), activation_(activation) {
    const std::uint64_t window = spec.kernel_h * spec.kernel_w;
    AddKernel({spec.kernel_h, spec.kernel_w, input[2], spec.filters}, spec.kernel_initializer,
              window * input[2], window * spec.filters, spec.kernel_l2);
    if (spec.use_bias)
      AddVariable("bias", {spec.filters}, spec.bias_initializer, spec.filters, spec.filters,
                  spec.bias_l2);
  }

  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) override {
    pass.backend.Conv2dForward(Of(pass), x, weights[0],
                               weights.size() > 1 ? weights[1].floats() : In(), activation_, y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) override {
    pass.backend.Conv2dBackward(Of(pass), x, weights[0], activation_, y, dy, dx, gradients[0],
                                gradients.size() > 1 ? gradients[1] : Out());
  }

 private:
  Conv2dShape Of(const Pass& pass) const {
    Conv2dShape shape = shape_;
    shape.batch = pass.batch;
    return shape;
  }
  const Conv2dShape shape_;  // of a batch of one
  const Activation activation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const config::LayerSpec& spec,
                                                  const tensor::Shape& input) {
  if (input.rank() != 3)
    return LayerError(spec, absl::StrCat("conv2d needs an input (height, width, channels), got ",
                                         input.ToString()));
  if (spec.filters < 1) return LayerError(spec, "filters must be at least 1: filters=0");
  if (spec.kernel_h < 1 || spec.kernel_w < 1)
    return LayerError(spec, absl::StrCat("kernel_size must be at least 1: kernel_size=",
                                         spec.kernel_h, "x", spec.kernel_w));
  if (spec.stride_h < 1 || spec.stride_w < 1)
    return LayerError(spec, absl::StrCat("strides must be at least 1: strides=", spec.stride_h, "x",
                                         spec.stride_w));
  EG_ASSIGN_OR_RETURN(const bool same, PaddingIsSame(spec));
  EG_ASSIGN_OR_RETURN(const Activation activation, ParseActivation(spec));
  if (!same && (spec.kernel_h > input[0] || spec.kernel_w > input[1])) {
    return LayerError(spec, absl::StrCat("kernel ", spec.kernel_h, "x", spec.kernel_w,
                                         " is larger than its input ", input.ToString()));
  }
  EG_ASSIGN_OR_RETURN(
      const tensor::Shape kernel,
      CheckedShape(spec, "its kernel", {spec.kernel_h, spec.kernel_w, input[2], spec.filters}));
  if (spec.stride_h > static_cast<std::uint64_t>(kElementsMax) ||
      spec.stride_w > static_cast<std::uint64_t>(kElementsMax)) {
    return LayerError(spec, absl::StrCat("strides must be at most ", kElementsMax,
                                         ": strides=", spec.stride_h, "x", spec.stride_w));
  }
  const auto as_int = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  const WindowAxis h =
      SlideWindow(as_int(input[0]), as_int(spec.kernel_h), as_int(spec.stride_h), same);
  const WindowAxis w =
      SlideWindow(as_int(input[1]), as_int(spec.kernel_w), as_int(spec.stride_w), same);
  EG_ASSIGN_OR_RETURN(tensor::Shape output,
                      CheckedShape(spec, "its output",
                                   {static_cast<std::uint64_t>(h.out),
                                    static_cast<std::uint64_t>(w.out), spec.filters}));
  Conv2dShape shape{};
  shape.batch = 1;
  shape.in_h = as_int(input[0]), shape.in_w = as_int(input[1]), shape.in_c = as_int(input[2]);
  shape.out_h = h.out, shape.out_w = w.out, shape.filters = as_int(spec.filters);
  shape.kernel_h = as_int(spec.kernel_h), shape.kernel_w = as_int(spec.kernel_w);
  shape.stride_h = as_int(spec.stride_h), shape.stride_w = as_int(spec.stride_w);
  shape.pad_top = h.pad_before, shape.pad_bottom = h.pad_after, shape.pad_left = w.pad_before,
  shape.pad_right = w.pad_after;
  return std::make_unique<Conv2d>(spec, input, std::move(output), shape, activation);
}

}  // namespace evergrad::worker
