// Tests the description of the model's layers in model.json.
#include "coordinator/runs/model_files.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "common/layers/layer_descriptor.h"

namespace evergrad::coordinator {
namespace {

using Json = nlohmann::ordered_json;

Json WrittenLayer(const std::string& type) {
  config::JobSpec spec;
  spec.model.layers.emplace_back();
  spec.model.layers.back().name = "x";
  spec.model.layers.back().type = type;
  spec.model.layers.back().inputs = {"a"};
  return Json::parse(ModelJson(spec, {})).at("layers").at(0);
}

TEST_CASE("a layer of model.json has its type's keys, in one order") {
  const std::string head = R"({"name":"x","type":")";
  const std::pair<std::string, std::string> cases[] = {
      {"dense", R"("units":0,"use_bias":true,"activation":"linear"})"},
      {"conv2d",
       R"("filters":0,"kernel_size":[0,0],"strides":[1,1],"padding":"valid","use_bias":true,)"
       R"("activation":"linear"})"},
      {"max_pooling2d", R"("pool_size":[2,2],"strides":[1,1],"padding":"valid"})"},
      {"activation", R"("activation":"linear"})"},
      {"embedding", R"("table":"","combiner":"none","weights":""})"},
      {"dot", R"("normalize":false})"},
      {"batch_normalization", R"("epsilon":0.001,"center":true,"scale":true})"},
      {"layer_normalization", R"("epsilon":0.001,"center":true,"scale":true})"},
  };
  for (const auto& [type, keys] : cases)
    CHECK(WrittenLayer(type).dump() == head + type + R"(","inputs":["a"],)" + keys);
  for (const std::string type : {"flatten", "dropout", "concatenate", "factorization_machine"})
    CHECK(WrittenLayer(type).dump() == head + type + R"(","inputs":["a"]})");
}

TEST_CASE("each key of a layer is in model.json or only matters while the model is trained") {
  const std::set<std::string> training = {"rate", "seed", "momentum"};
  for (const config::LayerDescriptor& layer : config::Layers()) {
    if (layer.infer == nullptr) continue;
    const Json written = WrittenLayer(layer.type);
    for (const auto& key : layer.keys) {
      INFO(layer.type << " " << key.name);
      const bool trains = training.contains(key.name) || key.name.ends_with("_initializer") ||
                          key.name.ends_with("_regularizer");
      CHECK(written.contains(key.name) != trains);
    }
  }
}

}  // namespace
}  // namespace evergrad::coordinator
