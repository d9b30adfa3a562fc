// The scalar product of two vectors per example, like Keras' Dot over axis 1. `normalize` divides
// each vector by its length first, which gives the cosine; as in Keras, a length below 1e-6 counts
// as 1e-6.
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dot final : public MergeLayer {
 public:
  explicit Dot(const LayerPlan& plan)
      : MergeLayer(plan),
        normalize_(plan.spec.normalize),
        elements_(static_cast<std::int64_t>(plan.input().elements())) {}

  Computes computes() const override { return Computes::kFloat32; }
  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    pass.backend.DotForward(pass.batch, elements_, normalize_, inputs[0].floats(),
                            inputs[1].floats(), y.floats());
  }
  void Unmerge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyIn, AnyIn dy,
               std::size_t input, AnyOut dx) override {
    pass.backend.DotBackward(pass.batch, elements_, normalize_, inputs[input].floats(),
                             inputs[1 - input].floats(), dy.floats(), dx.floats());
  }

 private:
  const bool normalize_;
  const std::int64_t elements_;
};

}  // namespace

std::vector<LayerMaker> DotMakers() { return {{"dot", &MakeOf<Dot>}}; }

}  // namespace evergrad::worker
