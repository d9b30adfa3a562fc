#include "worker/runner/model_inputs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/layers/layer.h"

namespace evergrad::worker {
namespace {

// Returns whether examples of shape `example` fit an input. (28, 28) and (28, 28, 1) have the same
// pixels in the same order, and a flat input accepts any shape.
bool ShapesFit(const tensor::Shape& input, const tensor::Shape& example) {
  if (input.elements() != example.elements()) return false;
  if (input.rank() == 1) return true;
  const auto trimmed = [](const tensor::Shape& shape) {
    std::vector<std::uint64_t> dims = shape.dims();
    while (!dims.empty() && dims.back() == 1) dims.pop_back();
    return dims;
  };
  return trimmed(input) == trimmed(example);
}

}  // namespace

absl::Status ModelInputs::Bind(const config::JobSpec& spec, const Graph& graph, const Dataset& data,
                               absl::string_view which) {
  const auto wrong = [&](const config::Location& at, absl::string_view words,
                         const std::string& field, absl::string_view values) {
    return ErrorAt(at, absl::StrCat(words, ": source=", which, " field=", field, " ", values));
  };
  const auto place_of = [&](const std::string& name) {
    const auto& inputs = spec.model.inputs;
    const auto found =
        std::find_if(inputs.begin(), inputs.end(),
                     [&](const config::InputSpec& input) { return input.name == name; });
    return found == inputs.end() ? config::Location() : found->where;
  };
  const auto type = [](tensor::DType dtype) {
    return dtype == tensor::DType::kInt64 ? "int64" : "float32";
  };
  fields_.clear();
  for (const GraphInput& input : graph.inputs()) {
    const auto field = data.FindField(input.name);
    if (!field)
      return wrong(place_of(input.name), "no field of the data has the name of a model input",
                   input.name, "");
    const Field& have = data.fields()[*field];
    if (have.dtype != input.dtype) {
      return wrong(
          place_of(input.name), "input type mismatch", input.name,
          absl::StrCat("model=", type(input.dtype),
                       input.dtype == tensor::DType::kInt64 ? " (ids of an embedding)" : "",
                       " data=", type(have.dtype)));
    }
    if (!ShapesFit(input.shape, have.shape))
      return wrong(place_of(input.name), "input shape mismatch", input.name,
                   absl::StrCat("model=", input.shape.ToString(), " data=", have.shape.ToString()));
    fields_.push_back(*field);
  }
  const std::string& labels = spec.model.losses[0].labels;
  const config::Location& loss = spec.model.losses[0].where;
  const auto field = data.FindField(labels);
  if (!field) return wrong(loss, "no field of the data has the name of the labels", labels, "");
  const std::uint64_t elements = data.fields()[*field].shape.elements();
  if (elements != graph.label_elements())
    return wrong(loss, "labels mismatch: the loss needs a different number of labels per example",
                 labels, absl::StrCat("want=", graph.label_elements(), " got=", elements));
  label_field_ = *field;
  integer_labels_ = data.fields()[*field].dtype == tensor::DType::kInt64;
  return absl::OkStatus();
}

std::vector<Values> ModelInputs::Of(const Graph& graph, const ReadyBatch& batch) const {
  std::vector<Values> inputs;
  inputs.reserve(fields_.size());
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const tensor::AlignedBuffer& field = batch.fields[fields_[i]];
    inputs.push_back(graph.inputs()[i].dtype == tensor::DType::kInt64 ? Values(Int64s(field))
                                                                      : Values(field.floats()));
  }
  return inputs;
}

absl::StatusOr<std::span<const float>> ModelInputs::LabelsOf(
    const config::JobSpec& spec, const ReadyBatch& batch,
    const std::function<tensor::AlignedBuffer(std::size_t)>& allocate,
    tensor::AlignedBuffer* as_floats) const {
  const tensor::AlignedBuffer& labels = batch.fields[label_field_];
  if (!integer_labels_) return labels.floats();
  const std::span<const std::int64_t> integers = Int64s(labels);
  if (as_floats->size() < integers.size() * sizeof(float))
    *as_floats = allocate(integers.size() * sizeof(float));
  const std::span<float> floats = as_floats->floats().first(integers.size());
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const std::int64_t label = integers[i];
    if (label < -(1 << 24) || label > (1 << 24))
      return UserError(absl::InvalidArgumentError(absl::StrCat(
          "integer label out of range: field=", spec.model.losses[0].labels, " value=", label)));
    floats[i] = static_cast<float>(label);
  }
  return floats;
}

}  // namespace evergrad::worker
