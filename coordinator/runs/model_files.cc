#include "coordinator/runs/model_files.h"

#include <algorithm>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/data_format.h"
#include "common/layers/layer_descriptor.h"
#include "coordinator/runs/load_py.inc"

namespace evergrad::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// The keys of layers that are needed to compute a model's outputs, in the order of model.json. The
// other keys are only needed to train a model.
struct LayerKey {
  absl::string_view name;
  Json (*value)(const config::LayerSpec& layer);
};
constexpr LayerKey kLayerKeys[] = {
    {"units", [](const config::LayerSpec& l) { return Json(l.units); }},
    {"filters", [](const config::LayerSpec& l) { return Json(l.filters); }},
    {"kernel_size",
     [](const config::LayerSpec& l) {
       return Json{l.kernel_h, l.kernel_w};
     }},
    {"pool_size",
     [](const config::LayerSpec& l) {
       return Json{l.pool_h, l.pool_w};
     }},
    {"strides",
     [](const config::LayerSpec& l) {
       return Json{l.stride_h, l.stride_w};
     }},
    {"padding", [](const config::LayerSpec& l) { return Json(l.padding); }},
    {"use_bias", [](const config::LayerSpec& l) { return Json(l.use_bias); }},
    {"activation", [](const config::LayerSpec& l) { return Json(l.activation); }},
    {"table", [](const config::LayerSpec& l) { return Json(l.table); }},
    {"combiner", [](const config::LayerSpec& l) { return Json(l.combiner); }},
    {"weights", [](const config::LayerSpec& l) { return Json(l.weights); }},
    {"normalize", [](const config::LayerSpec& l) { return Json(l.normalize); }},
    {"epsilon", [](const config::LayerSpec& l) { return Json(l.epsilon); }},
    {"center", [](const config::LayerSpec& l) { return Json(l.center); }},
    {"scale", [](const config::LayerSpec& l) { return Json(l.scale); }},
};

// The descriptor of the layer's type determines which of these keys the layer has.
Json LayerJson(const config::LayerSpec& layer) {
  Json json{{"name", layer.name}, {"type", layer.type}, {"inputs", layer.inputs}};
  const config::LayerDescriptor* const descriptor = config::FindLayer(layer.type);
  if (descriptor == nullptr) return json;
  for (const LayerKey& key : kLayerKeys) {
    if (std::any_of(descriptor->keys.begin(), descriptor->keys.end(),
                    [&](const auto& of_layer) { return of_layer.name == key.name; }))
      json[std::string(key.name)] = key.value(layer);
  }
  return json;
}

Json TableJson(const v1::TableSpec& table) {
  const v1::Initializer& i = table.initializer();
  return Json{{"name", table.name()},
              {"dimension", table.dimension()},
              {"admit_after", table.admit_after()},
              {"default_row", table.default_row()},
              {"initializer",
               {{"type", i.type()},
                {"value", i.value()},
                {"mean", i.mean()},
                {"stddev", i.stddev()},
                {"fan_in", i.fan_in()},
                {"fan_out", i.fan_out()},
                {"seed", i.seed()}}}};
}

}  // namespace

std::string ModelJson(const config::JobSpec& spec, const v1::Plan& plan) {
  Json json{{"format", "evergrad-model"}, {"version", 1}, {"job", spec.name}};
  const config::SourceSpec source = spec.data.train.value_or(config::SourceSpec());
  json["data"] = config::DescribeSource(source);
  json["fields"] = Json::array();
  for (const config::FieldSpec& field : spec.data.fields)
    json["fields"].push_back(config::DescribeField(source.format, field));
  json["inputs"] = Json::array();
  for (const config::InputSpec& input : spec.model.inputs)
    json["inputs"].push_back(Json{{"name", input.name}, {"shape", input.shape}});
  json["layers"] = Json::array();
  for (const config::LayerSpec& layer : spec.model.layers)
    json["layers"].push_back(LayerJson(layer));
  json["variables"] = Json::array();
  std::set<std::string> names;
  for (const v1::ShardSpec& shard : plan.shards()) {
    if (shard.has_slot() || !names.insert(shard.variable().name()).second) continue;
    json["variables"].push_back(
        Json{{"name", shard.variable().name()},
             {"shape", std::vector<std::uint64_t>(shard.variable().shape().begin(),
                                                  shard.variable().shape().end())}});
  }
  json["tables"] = Json::array();
  for (const v1::TableSpec& table : plan.tables()) json["tables"].push_back(TableJson(table));
  json["loss"] = nullptr;
  if (!spec.model.losses.empty()) {
    const config::LossSpec& loss = spec.model.losses.front();
    json["loss"] = {{"type", loss.type},
                    {"from_logits", loss.from_logits},
                    {"output", loss.output},
                    {"labels", loss.labels}};
  }
  json["metrics"] = spec.model.metrics;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ModelReadme(const config::JobSpec& spec, bool has_tables, bool tables_written) {
  std::string text = absl::StrCat(
      "# ", spec.name,
      "\n\n"
      "| file | contents |\n| --- | --- |\n"
      "| model.json | layers, fields with their transforms, embedding tables, loss |\n"
      "| load.py | maps raw records to the model's inputs and computes its outputs; needs only "
      "Python 3 and NumPy |\n"
      "| vocabularies.json | words by field, in order of their ids from 1 on; only where a field "
      "has a vocabulary |\n"
      "| tables.npz | ids and rows of the embedding tables; only where the model has some |\n"
      "| weights.npz | all other weights: the same file as ../weights.npz |\n\n"
      "    python3 load.py RECORDS.csv\n"
      "    python3 load.py --evaluate RECORDS.csv\n");
  if (has_tables && !tables_written) {
    absl::StrAppend(&text,
                    "\ntables.npz is not here: the tables are larger than what a coordinator "
                    "writes by itself (256 MiB), or the job has no complete\n"
                    "checkpoint that the coordinator could read. `psctl checkpoint export "
                    "CHECKPOINT --to tables.npz` writes it.\n");
  }
  return text;
}

std::string LoadPy() { return kLoadPy; }

}  // namespace evergrad::coordinator
