// Inverted dropout: in training, each element is kept with probability 1 - rate, and a kept element
// is divided by 1 - rate; evaluation changes nothing.
//
// The mask is a function of (step's key, layer's name, layer's seed, element) and does not depend
// on the worker. A closure that is run again therefore draws the same mask.
#include "absl/strings/str_cat.h"
#include "common/random/philox.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dropout final : public Layer {
 public:
  explicit Dropout(const LayerPlan& plan)
      : Layer(plan),
        rate_(plan.spec.rate),
        stream_(plan.spec.seed ? absl::StrCat(plan.spec.name, "#", *plan.spec.seed)
                               : plan.spec.name) {}

  std::optional<std::uint64_t> StepKey(std::uint64_t dropout_key) const override {
    return random::KeyOf(dropout_key, stream_);
  }
  void Forward(const Pass& pass, const std::vector<AnyIn>&, AnyIn x, AnyOut y) override {
    if (pass.training && rate_ > 0) {
      pass.backend.Dropout(rate_, pass.key, x, y);
    } else {
      pass.backend.Copy(x, y);
    }
  }
  void Backward(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn, AnyOut dy, AnyOut dx,
                const std::vector<Out>&) override {
    if (dx.empty()) return;
    if (rate_ > 0) {
      pass.backend.Dropout(rate_, pass.key, dy, dx);
    } else {
      pass.backend.Copy(dy, dx);
    }
  }

 private:
  const double rate_;
  const std::string stream_;
};

}  // namespace

std::vector<LayerMaker> DropoutMakers() { return {{"dropout", &MakeOf<Dropout>}}; }

}  // namespace evergrad::worker
