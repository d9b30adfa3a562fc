// Inverted dropout: in training each element is kept with probability 1 - rate and divided by it;
// in evaluation nothing happens.
//
// The mask is a function of (step's key, layer's name, layer's seed, element), never of who
// computes the step: a retried closure draws the same one.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dropout final : public Layer {
 public:
  Dropout(const config::LayerSpec& spec, const tensor::Shape& input)
      : Layer(spec, "Dropout", input, input),
        rate_(spec.rate),
        stream_(spec.seed ? absl::StrCat(spec.name, "#", *spec.seed) : spec.name) {}

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

absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const config::LayerSpec& spec,
                                                   const tensor::Shape& input) {
  if (!(spec.rate >= 0 && spec.rate < 1))
    return LayerError(spec, absl::StrCat("rate must be in [0, 1): rate=", spec.rate));
  return std::make_unique<Dropout>(spec, input);
}

}  // namespace evergrad::worker
