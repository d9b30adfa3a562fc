// Concatenates inputs along the last axis; all other axes are equal.
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Concatenate final : public MergeLayer {
 public:
  explicit Concatenate(const LayerPlan& plan)
      : MergeLayer(plan),
        rows_per_example_(
            static_cast<std::int64_t>(plan.output().elements() / plan.output().dims().back())),
        columns_(static_cast<std::int64_t>(plan.output().dims().back())) {
    for (const tensor::Shape& input : plan.inputs.shapes) {
      begins_.push_back(begins_.empty() ? 0 : begins_.back() + widths_.back());
      widths_.push_back(static_cast<std::int64_t>(input.dims().back()));
    }
  }

  void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y) override {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      pass.backend.CopyColumns(pass.batch * rows_per_example_, widths_[i], inputs[i], widths_[i], 0,
                               y, columns_, begins_[i]);
  }
  void Unmerge(const Pass& pass, const std::vector<AnyIn>&, AnyIn, AnyIn dy, std::size_t input,
               AnyOut dx) override {
    pass.backend.CopyColumns(pass.batch * rows_per_example_, widths_[input], dy, columns_,
                             begins_[input], dx, widths_[input], 0);
  }

 private:
  const std::int64_t rows_per_example_, columns_;
  std::vector<std::int64_t> begins_, widths_;  // by input
};

}  // namespace

std::vector<LayerMaker> ConcatenateMakers() { return {{"concatenate", &MakeOf<Concatenate>}}; }

}  // namespace evergrad::worker
