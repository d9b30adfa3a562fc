// The layers `add` and `multiply`: the sum and the product of inputs of one shape, in listed order.
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Add final : public MergeLayer {
 public:
  using MergeLayer::MergeLayer;

  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    pass.backend.Sum(inputs, y);
  }
  void Unmerge(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn dy, std::size_t,
               AnyOut dx) override {
    pass.backend.Copy(dy, dx);
  }
};

// In mixed precision each product of two inputs is rounded to 16 bits, as in Keras.
class Multiply final : public MergeLayer {
 public:
  using MergeLayer::MergeLayer;

  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    pass.backend.Multiply(inputs[0], inputs[1], y);
    for (std::size_t i = 2; i < inputs.size(); ++i) pass.backend.Multiply(y, inputs[i], y);
  }
  // The gradient dx is dy times the product of all other inputs.
  void Unmerge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyIn, AnyIn dy,
               std::size_t input, AnyOut dx) override {
    AnyIn so_far = dy;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i == input) continue;
      pass.backend.Multiply(so_far, inputs[i], dx);
      so_far = dx;
    }
  }
};

}  // namespace

std::vector<LayerMaker> ElementwiseMakers() {
  return {{"add", &MakeOf<Add>}, {"multiply", &MakeOf<Multiply>}};
}

}  // namespace evergrad::worker
