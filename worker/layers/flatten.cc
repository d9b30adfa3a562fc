// One axis of all elements. Memory is row-major, so nothing moves.
#include "common/base/check.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Flatten final : public Layer {
 public:
  Flatten(const config::LayerSpec& spec, const tensor::Shape& input)
      : Layer(spec, "Flatten", input, tensor::Shape{input.elements()}) {}
  bool is_view() const override { return true; }
  void Forward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyOut) override { EG_CHECK(false); }
  void Backward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut, AnyOut,
                const std::vector<Out>&) override {
    EG_CHECK(false);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeFlatten(const config::LayerSpec& spec,
                                                   const tensor::Shape& input) {
  return std::make_unique<Flatten>(spec, input);
}

}  // namespace evergrad::worker
