// The scalar product of two vectors an example: Keras' Dot over axis 1. `normalize` divides each by
// its length first, which makes it the cosine; like Keras', a length below 1e-6 counts as 1e-6.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dot final : public MergeLayer {
 public:
  Dot(const config::LayerSpec& spec, const tensor::Shape& input)
      : MergeLayer(spec, "Dot", input, tensor::Shape{1}),
        normalize_(spec.normalize),
        elements_(static_cast<std::int64_t>(input.elements())) {}

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

absl::StatusOr<std::unique_ptr<Layer>> MakeDot(const config::LayerSpec& spec,
                                               const std::vector<tensor::Shape>& inputs) {
  if (inputs.size() != 2)
    return LayerError(spec, absl::StrCat("dot takes two inputs, got ", inputs.size()));
  if (inputs[0].rank() != 1 || inputs[0] != inputs[1])
    return LayerError(spec,
                      absl::StrCat("dot needs two vectors of one size, got ", ShapeList(inputs)));
  return std::make_unique<Dot>(spec, inputs[0]);
}

}  // namespace evergrad::worker
