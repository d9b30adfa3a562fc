// The second-order term of a factorization machine (Rendle, "Factorization Machines", ICDM 2010,
// lemma 3.1): the sum of the scalar products of all pairs of vectors, in linear time: 0.5 * sum
// over d of ((sum over f of v[f,d])^2 - sum over f of v[f,d]^2).
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class FactorizationMachine final : public MergeLayer {
 public:
  FactorizationMachine(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs)
      : MergeLayer(spec, "FactorizationMachine", inputs[0], tensor::Shape{1}),
        dimension_(static_cast<std::int64_t>(inputs[0].dims().back())) {}

  Computes computes() const override { return Computes::kFloat32; }
  absl::Status Reserve(Backend& backend, std::int64_t batch) override {
    return ReserveState(backend, *this,
                        static_cast<std::size_t>(batch * dimension_) * sizeof(float), &sums_);
  }
  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    std::vector<In> floats;
    floats.reserve(inputs.size());
    for (const AnyIn& input : inputs) floats.push_back(input.floats());
    pass.backend.FactorizationForward(pass.batch, dimension_, floats, Sums(pass), y.floats());
  }
  void Unmerge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyIn, AnyIn dy,
               std::size_t input, AnyOut dx) override {
    pass.backend.FactorizationBackward(pass.batch, dimension_, inputs[input].floats(), Sums(pass),
                                       dy.floats(), dx.floats());
  }

 private:
  Out Sums(const Pass& pass) {
    return sums_.as<float>().first(static_cast<std::size_t>(pass.batch * dimension_));
  }

  const std::int64_t dimension_;
  Memory sums_;  // of all vectors of an example, from Forward to Backward
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeFactorizationMachine(
    const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs) {
  std::uint64_t fields = 0;
  for (const tensor::Shape& input : inputs) {
    if ((input.rank() != 1 && input.rank() != 2) || input.dims().back() != inputs[0].dims().back())
      return LayerError(spec, absl::StrCat("factorization_machine needs vectors of one size, as "
                                           "inputs (dimension) or (fields, dimension); got ",
                                           ShapeList(inputs)));
    fields += input.rank() == 1 ? 1 : input[0];
  }
  if (fields < 2)
    return LayerError(
        spec, absl::StrCat("factorization_machine needs at least two vectors an example, got ",
                           ShapeList(inputs)));
  return std::make_unique<FactorizationMachine>(spec, inputs);
}

}  // namespace evergrad::worker
