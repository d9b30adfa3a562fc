// The scalar product of two vectors an example: Keras' Dot over axis 1. `normalize` divides each by its length first, which makes it the
// cosine; like Keras', a length below 1e-6 counts as 1e-6.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dot final : public MergeLayer {
 public:
  Dot(const config::LayerSpec& spec, const tensor::Shape& input)
      : MergeLayer(spec, "Dot", input, tensor::Shape{1}), normalize_(spec.normalize), elements_(static_cast<std::int64_t>(input.elements())) {}

  void Merge(const Pass& pass, const std::vector<In>& inputs, Out y) override {
    pass.backend.DotForward(pass.batch, elements_, normalize_, inputs[0], inputs[1], y);
  }
  void Unmerge(const Pass& pass, const std::vector<In>& inputs, In, In dy, std::size_t input, Out dx) override {
    pass.backend.DotBackward(pass.batch, elements_, normalize_, inputs[input], inputs[1 - input], dy, dx);
  }

 private:
  const bool normalize_;
  const std::int64_t elements_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDot(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs) {
  if (inputs.size() != 2) return LayerError(spec, absl::StrCat("dot takes two inputs, got ", inputs.size()));
  if (inputs[0].rank() != 1 || inputs[0] != inputs[1])
    return LayerError(spec, absl::StrCat("dot needs two vectors of one size, got ", ShapeList(inputs)));
  return std::make_unique<Dot>(spec, inputs[0]);
}

}  // namespace evergrad::worker
