// The maximum of each window per channel, with TensorFlow's rule for padding. An element of the
// padding is never the maximum.
#include "common/layers/shape_rules.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

// Returns the shape for a batch of one.
PoolShape PoolOf(const LayerPlan& plan) {
  const config::LayerSpec& spec = plan.spec;
  const tensor::Shape& in = plan.input();
  const config::Window window =
      *config::SlideWindow(spec, in, spec.pool_h, spec.pool_w, "pool_size", "pool");
  const auto as_int = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return {.batch = 1,
          .in_h = as_int(in[0]),
          .in_w = as_int(in[1]),
          .channels = as_int(in[2]),
          .out_h = window.h.out,
          .out_w = window.w.out,
          .pool_h = as_int(spec.pool_h),
          .pool_w = as_int(spec.pool_w),
          .stride_h = as_int(spec.stride_h),
          .stride_w = as_int(spec.stride_w),
          .pad_top = window.h.pad_before,
          .pad_left = window.w.pad_before,
          .pad_bottom = window.h.pad_after,
          .pad_right = window.w.pad_after};
}

class MaxPooling2d final : public Layer {
 public:
  explicit MaxPooling2d(const LayerPlan& plan) : Layer(plan), shape_(PoolOf(plan)) {}

  absl::Status Reserve(Backend& backend, std::int64_t batch) override {
    return ReserveState(
        backend, *this,
        static_cast<std::size_t>(batch) * output_shape().elements() * sizeof(std::int32_t),
        &argmax_);
  }
  void Forward(const Pass& pass, const std::vector<AnyIn>&, AnyIn x, AnyOut y) override {
    pass.backend.MaxPoolForward(Of(pass), x, y, argmax_.as<std::int32_t>().first(y.size()));
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut dy, AnyOut dx,
                const std::vector<Out>&) override {
    if (!dx.empty())
      pass.backend.MaxPoolBackward(Of(pass), dy, argmax_.as<std::int32_t>().first(dy.size()), dx);
  }

 private:
  PoolShape Of(const Pass& pass) const {
    PoolShape shape = shape_;
    shape.batch = pass.batch;
    return shape;
  }
  const PoolShape shape_;  // shape for a batch of one
  Memory argmax_;
};

}  // namespace

std::vector<LayerMaker> MaxPooling2dMakers() { return {{"max_pooling2d", &MakeOf<MaxPooling2d>}}; }

}  // namespace evergrad::worker
