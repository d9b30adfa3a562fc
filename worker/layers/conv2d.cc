// A convolution over NHWC with an HWIO kernel and TensorFlow's padding.
#include "common/layers/shape_rules.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

// Returns the shape for a batch of one.
Conv2dShape ConvolutionOf(const LayerPlan& plan) {
  const config::LayerSpec& spec = plan.spec;
  const tensor::Shape& in = plan.input();
  const config::Window window =
      *config::SlideWindow(spec, in, spec.kernel_h, spec.kernel_w, "kernel_size", "kernel");
  const auto as_int = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return {.batch = 1,
          .in_h = as_int(in[0]),
          .in_w = as_int(in[1]),
          .in_c = as_int(in[2]),
          .out_h = window.h.out,
          .out_w = window.w.out,
          .filters = as_int(spec.filters),
          .kernel_h = as_int(spec.kernel_h),
          .kernel_w = as_int(spec.kernel_w),
          .stride_h = as_int(spec.stride_h),
          .stride_w = as_int(spec.stride_w),
          .pad_top = window.h.pad_before,
          .pad_left = window.w.pad_before,
          .pad_bottom = window.h.pad_after,
          .pad_right = window.w.pad_after};
}

class Conv2d final : public Layer {
 public:
  explicit Conv2d(const LayerPlan& plan)
      : Layer(plan), shape_(ConvolutionOf(plan)), activation_(ActivationOf(plan.spec)) {}

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
  const Conv2dShape shape_;  // shape for a batch of one
  const Activation activation_;
};

}  // namespace

std::vector<LayerMaker> Conv2dMakers() { return {{"conv2d", &MakeOf<Conv2d>}}; }

}  // namespace evergrad::worker
