// The mean of each channel over height and width.
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class GlobalAveragePooling2d final : public Layer {
 public:
  explicit GlobalAveragePooling2d(const LayerPlan& plan)
      : Layer(plan),
        positions_(static_cast<std::int64_t>(plan.input()[0] * plan.input()[1])),
        channels_(static_cast<std::int64_t>(plan.input()[2])) {}

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

std::vector<LayerMaker> GlobalAveragePooling2dMakers() {
  return {{"global_average_pooling2d", &MakeOf<GlobalAveragePooling2d>}};
}

}  // namespace evergrad::worker
