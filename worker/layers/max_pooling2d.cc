// The largest value of each window, per channel; TensorFlow's padding, which never wins.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class MaxPooling2d final : public Layer {
 public:
  MaxPooling2d(const config::LayerSpec& spec, const tensor::Shape& input, tensor::Shape output,
               const PoolShape& shape)
      : Layer(spec, "MaxPooling2D", input, std::move(output)), shape_(shape) {}

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
  const PoolShape shape_;  // of a batch of one
  Memory argmax_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPooling2d(const config::LayerSpec& spec,
                                                        const tensor::Shape& input) {
  if (input.rank() != 3)
    return LayerError(spec,
                      absl::StrCat("max_pooling2d needs an input (height, width, channels), got ",
                                   input.ToString()));
  if (spec.pool_h < 1 || spec.pool_w < 1)
    return LayerError(spec, absl::StrCat("pool_size must be at least 1: pool_size=", spec.pool_h,
                                         "x", spec.pool_w));
  if (spec.stride_h < 1 || spec.stride_w < 1)
    return LayerError(spec, absl::StrCat("strides must be at least 1: strides=", spec.stride_h, "x",
                                         spec.stride_w));
  EG_ASSIGN_OR_RETURN(const bool same, PaddingIsSame(spec));
  const std::uint64_t limit = static_cast<std::uint64_t>(kElementsMax);
  if (spec.pool_h > limit || spec.pool_w > limit || spec.stride_h > limit ||
      spec.stride_w > limit) {
    return LayerError(spec, absl::StrCat("pool_size and strides must be at most ", kElementsMax));
  }
  if (!same && (spec.pool_h > input[0] || spec.pool_w > input[1])) {
    return LayerError(spec, absl::StrCat("pool ", spec.pool_h, "x", spec.pool_w,
                                         " is larger than its input ", input.ToString()));
  }
  const auto as_int = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  const WindowAxis h =
      SlideWindow(as_int(input[0]), as_int(spec.pool_h), as_int(spec.stride_h), same);
  const WindowAxis w =
      SlideWindow(as_int(input[1]), as_int(spec.pool_w), as_int(spec.stride_w), same);
  PoolShape shape{};
  shape.batch = 1;
  shape.in_h = as_int(input[0]), shape.in_w = as_int(input[1]), shape.channels = as_int(input[2]);
  shape.out_h = h.out, shape.out_w = w.out;
  shape.pool_h = as_int(spec.pool_h), shape.pool_w = as_int(spec.pool_w);
  shape.stride_h = as_int(spec.stride_h), shape.stride_w = as_int(spec.stride_w);
  shape.pad_top = h.pad_before, shape.pad_bottom = h.pad_after, shape.pad_left = w.pad_before,
  shape.pad_right = w.pad_after;
  EG_ASSIGN_OR_RETURN(tensor::Shape output,
                      CheckedShape(spec, "its output",
                                   {static_cast<std::uint64_t>(h.out),
                                    static_cast<std::uint64_t>(w.out), input[2]}));
  return std::make_unique<MaxPooling2d>(spec, input, std::move(output), shape);
}

}  // namespace evergrad::worker
