// The sum of inputs of one shape, added in listed order.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Add final : public MergeLayer {
 public:
  Add(const config::LayerSpec& spec, const tensor::Shape& input)
      : MergeLayer(spec, "Add", input, input) {}

  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    pass.backend.Sum(inputs, y);
  }
  void Unmerge(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn dy, std::size_t,
               AnyOut dx) override {
    pass.backend.Copy(dy, dx);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeAdd(const config::LayerSpec& spec,
                                               const std::vector<tensor::Shape>& inputs) {
  if (inputs.size() < 2) return LayerError(spec, "add needs at least two inputs, got 1");
  for (const tensor::Shape& input : inputs) {
    if (input != inputs[0])
      return LayerError(spec,
                        absl::StrCat("add needs inputs of one shape, got ", ShapeList(inputs)));
  }
  return std::make_unique<Add>(spec, inputs[0]);
}

}  // namespace evergrad::worker
