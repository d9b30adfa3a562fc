// Inverted dropout: in training each element is kept with probability 1 - rate and divided by it; in evaluation nothing happens.
//
// The mask is a function of (step's key, layer's name, layer's seed, element), never of who computes the step: a retried
// closure draws the same one.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/random/philox.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Dropout final : public Layer {
 public:
  Dropout(const config::LayerSpec& spec, const tensor::Shape& input)
      : Layer(spec, "Dropout", input, input), rate_(spec.rate), stream_(spec.seed ? absl::StrCat(spec.name, "#", *spec.seed) : spec.name) {}

  void Forward(const Pass& pass, const std::vector<In>&, In x, Out y) override {
    if (pass.training && rate_ > 0) {
      pass.backend.Dropout(rate_, Key(pass), x, y);
    } else {
      std::copy(x.begin(), x.end(), y.begin());
    }
  }
  void Backward(const Pass& pass, const std::vector<In>&, In, In, Out dy, Out dx, const std::vector<Out>&) override {
    if (dx.empty()) return;
    if (rate_ > 0) {
      pass.backend.Dropout(rate_, Key(pass), dy, dx);
    } else {
      std::copy(dy.begin(), dy.end(), dx.begin());
    }
  }

 private:
  std::uint64_t Key(const Pass& pass) const { return random::KeyOf(pass.dropout_key, stream_); }
  const double rate_;
  const std::string stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const config::LayerSpec& spec, const tensor::Shape& input) {
  if (!(spec.rate >= 0 && spec.rate < 1)) return LayerError(spec, absl::StrCat("rate must be in [0, 1): rate=", spec.rate));
  return std::make_unique<Dropout>(spec, input);
}

}  // namespace evergrad::worker
