// Inputs side by side along the last axis; all other axes agree.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

class Concatenate final : public MergeLayer {
 public:
  Concatenate(const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs,
              tensor::Shape output)
      : MergeLayer(spec, "Concatenate", inputs[0], std::move(output)),
        rows_per_example_(
            static_cast<std::int64_t>(output_shape().elements() / output_shape().dims().back())),
        columns_(static_cast<std::int64_t>(output_shape().dims().back())) {
    for (const tensor::Shape& input : inputs) {
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

absl::StatusOr<std::unique_ptr<Layer>> MakeConcatenate(const config::LayerSpec& spec,
                                                       const std::vector<tensor::Shape>& inputs) {
  std::vector<std::uint64_t> dims = inputs[0].dims();
  for (const tensor::Shape& input : inputs) {
    if (input.rank() < 1)
      return LayerError(spec, absl::StrCat("concatenate needs inputs of rank 1 or more, got ",
                                           ShapeList(inputs)));
    if (input.rank() != dims.size() ||
        !std::equal(dims.begin(), dims.end() - 1, input.dims().begin()))
      return LayerError(
          spec, absl::StrCat("concatenate needs inputs that agree in all axes but the last, got ",
                             ShapeList(inputs)));
  }
  dims.back() = 0;
  for (const tensor::Shape& input : inputs) dims.back() += input.dims().back();
  EG_ASSIGN_OR_RETURN(tensor::Shape output, CheckedShape(spec, "its output", std::move(dims)));
  return std::make_unique<Concatenate>(spec, inputs, std::move(output));
}

}  // namespace evergrad::worker
