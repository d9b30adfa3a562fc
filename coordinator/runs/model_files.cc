#include "coordinator/runs/model_files.h"

#include <set>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/data_formats/data_format.h"
#include "coordinator/runs/load_py.inc"

namespace evergrad::coordinator {
namespace {

using Json = nlohmann::ordered_json;

Json LayerJson(const config::LayerSpec& layer) {
  Json json{{"name", layer.name}, {"type", layer.type}, {"inputs", layer.inputs}};
  const bool conv = layer.type == "conv2d", pool = layer.type == "max_pooling2d";
  if (layer.type == "dense") json["units"] = layer.units;
  if (conv) {
    json["filters"] = layer.filters;
    json["kernel_size"] = {layer.kernel_h, layer.kernel_w};
  }
  if (pool) json["pool_size"] = {layer.pool_h, layer.pool_w};
  if (conv || pool) {
    json["strides"] = {layer.stride_h, layer.stride_w};
    json["padding"] = layer.padding;
  }
  if (layer.type == "dense" || conv) json["use_bias"] = layer.use_bias;
  if (layer.type == "dense" || conv || layer.type == "activation")
    json["activation"] = layer.activation;
  if (layer.type == "embedding") {
    json["table"] = layer.table;
    json["combiner"] = layer.combiner;
    json["weights"] = layer.weights;
  }
  if (layer.type == "dot") json["normalize"] = layer.normalize;
  if (layer.type == "batch_normalization" || layer.type == "layer_normalization") {
    json["epsilon"] = layer.epsilon;
    json["center"] = layer.center;
    json["scale"] = layer.scale;
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
