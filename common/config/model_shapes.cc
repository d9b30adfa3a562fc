// Applies the shape rules of common/layers to the layers in the order of the file.
#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/config/model_rules.h"
#include "common/layers/layer_shapes.h"
#include "common/layers/losses.h"
#include "common/layers/metrics.h"
#include "common/layers/named.h"

namespace evergrad::config {
namespace {

// Returns the number of elements of a field in one example, or nullopt if the job does not state
// it.
std::optional<std::uint64_t> ElementsOf(const DataSpec& data, const std::string& name) {
  if (!data.train) return std::nullopt;
  const std::string& format = data.train->format;
  if (format == "idx") return name == "label" ? std::optional<std::uint64_t>(1) : std::nullopt;
  const auto field = std::find_if(data.fields.begin(), data.fields.end(),
                                  [&](const FieldSpec& f) { return f.name == name; });
  if (field == data.fields.end()) return std::nullopt;
  if (format == "csv") return field->list ? field->columns.size() : 1;
  if (format != "synthetic") return std::nullopt;
  if (!field->shape.empty()) return tensor::Shape(field->shape).elements();
  return std::max<std::uint64_t>(1, field->size);
}

class ShapeWalk {
 public:
  ShapeWalk(const JobSpec& spec, Reader* reader)
      : spec_(spec), model_(spec.model), reader_(*reader) {}

  void Run() {
    for (const InputSpec& input : model_.inputs) shapes_[input.name] = tensor::Shape(input.shape);
    for (const LayerSpec& layer : model_.layers) Visit(layer);
    for (const LossSpec& loss : model_.losses) Visit(loss);
  }

 private:
  std::optional<LayerInputs> InputsOf(const LayerSpec& layer) const {
    LayerInputs inputs;
    for (const std::string& name : layer.inputs) {
      const auto found = shapes_.find(name);
      if (found == shapes_.end()) return std::nullopt;
      inputs.shapes.push_back(found->second);
    }
    if (!layer.weights.empty()) inputs.weights = shapes_.at(layer.weights);
    for (const TableSpec& table : model_.tables)
      if (table.name == layer.table) inputs.dimension = table.dimension;
    return inputs;
  }

  void Visit(const LayerSpec& layer) {
    const std::optional<LayerInputs> inputs = InputsOf(layer);
    if (!inputs) return;
    const auto inferred = InferLayer(layer, *inputs);
    if (inferred.ok())
      shapes_[layer.name] = inferred->output;
    else
      reader_.Report(layer.where,
                     absl::StrCat("layer `", layer.name, "`: ", inferred.status().message()));
  }

  void Visit(const LossSpec& loss) {
    const auto output = shapes_.find(loss.output);
    if (output == shapes_.end()) return;
    const auto layer = std::find_if(model_.layers.begin(), model_.layers.end(),
                                    [&](const LayerSpec& l) { return l.name == loss.output; });
    const absl::Status fits = CheckLoss(loss, output->second, layer->activation);
    if (!fits.ok()) return Refuse(loss, fits.message());
    const std::uint64_t wanted = LabelElements(*FindBuilt(Losses(), loss.type), output->second);
    const std::optional<std::uint64_t> given = ElementsOf(spec_.data, loss.labels);
    if (given && *given != wanted)
      return Refuse(loss,
                    absl::StrCat("a field has the wrong number of labels per example: field=`",
                                 loss.labels, "` want=", wanted, " got=", *given, " output=`",
                                 loss.output, "` ", output->second.ToString()));
    for (const std::string& metric : model_.metrics)
      if (const absl::Status defined = CheckMetric(metric, loss, output->second); !defined.ok())
        Refuse(loss, defined.message());
  }

  void Refuse(const LossSpec& loss, absl::string_view why) {
    reader_.Report(loss.where, absl::StrCat("loss `", loss.type, "`: ", why));
  }

  const JobSpec& spec_;
  const ModelSpec& model_;
  Reader& reader_;
  // Shapes of inputs, and of layers without a mistake.
  std::map<std::string, tensor::Shape> shapes_;
};

}  // namespace

void CheckShapes(const JobSpec& spec, Reader* reader) { ShapeWalk(spec, reader).Run(); }

}  // namespace evergrad::config
