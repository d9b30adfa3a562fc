// The mean of each channel over height and width.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class GlobalAveragePooling2d final : public Layer {
 public:
  GlobalAveragePooling2d(const config::LayerSpec& spec, const tensor::Shape& input)
      : Layer(spec, "GlobalAveragePooling2D", input, {input[2]}),
        positions_(static_cast<std::int64_t>(input[0] * input[1])),
        channels_(static_cast<std::int64_t>(input[2])) {}

  void Forward(const Pass& pass, const std::vector<AnyIn>&, AnyIn x, AnyOut y) override {
    pass.backend.GlobalAveragePoolForward(pass.batch, positions_, channels_, x, y);
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut dy, AnyOut dx,
                const std::vector<Out>&) override {
    if (!dx.empty())
      pass.backend.GlobalAveragePoolBackward(pass.batch, positions_, channels_, dy, dx);
  }

 private:
  const std::int64_t positions_, channels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeGlobalAveragePooling2d(const config::LayerSpec& spec,
                                                                  const tensor::Shape& input) {
  if (input.rank() != 3)
    return LayerError(
        spec,
        absl::StrCat("global_average_pooling2d needs an input (height, width, channels), got ",
                     input.ToString()));
  return std::make_unique<GlobalAveragePooling2d>(spec, input);
}

}  // namespace evergrad::worker
