// Reshapes an input to one axis with all elements. Memory is row-major, so no data is moved.
#include "common/base/check.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Flatten final : public Layer {
 public:
  using Layer::Layer;
  bool is_view() const override { return true; }
  void Forward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyOut) override { EG_CHECK(false); }
  void Backward(const Pass&, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut, AnyOut,
                const std::vector<Out>&) override {
    EG_CHECK(false);
  }
};

}  // namespace

std::vector<LayerMaker> FlattenMakers() { return {{"flatten", &MakeOf<Flatten>}}; }

}  // namespace evergrad::worker
