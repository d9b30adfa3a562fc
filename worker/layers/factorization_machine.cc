// The second-order term of a factorization machine (Rendle, "Factorization Machines", ICDM 2010,
// lemma 3.1). The term is the sum of the scalar products of all pairs of vectors, computed in
// linear time: 0.5 * sum over d of ((sum over f of v[f,d])^2 - sum over f of v[f,d]^2).
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class FactorizationMachine final : public MergeLayer {
 public:
  explicit FactorizationMachine(const LayerPlan& plan)
      : MergeLayer(plan), dimension_(static_cast<std::int64_t>(plan.input().dims().back())) {}

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
  Memory sums_;  // sum of all vectors of an example, kept from Forward to Backward
};

}  // namespace

std::vector<LayerMaker> FactorizationMachineMakers() {
  return {{"factorization_machine", &MakeOf<FactorizationMachine>}};
}

}  // namespace evergrad::worker
