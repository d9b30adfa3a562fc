#include "worker/graph/graph_builder.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "tests/unit/worker/graph/reference_fixture.h"

namespace evergrad::worker {
namespace {

using namespace test;

// Returns the graph nodes of a model that must be valid.
GraphNodes NodesOf(const config::ModelSpec& model, Precision precision = Precision::kFloat32) {
  const std::unique_ptr<Backend> backend = *MakeBackend({"cpu", 1});
  auto nodes = GraphBuilder(*backend, precision).Build(model);
  INFO(nodes.status().ToString());
  REQUIRE(nodes.ok());
  return *std::move(nodes);
}

std::size_t IndexOf(const GraphNodes& nodes, const std::string& name) {
  for (std::size_t v = 0; v < nodes.values.size(); ++v)
    if (nodes.values[v].name == name) return v;
  FAIL("no value " << name);
  return 0;
}

const GraphStorage& StorageOf(const GraphNodes& nodes, const std::string& name) {
  return nodes.StorageOf(IndexOf(nodes, name));
}

// The model is x -> a -> {flat -> b, drop -> c} -> sum. `a` has two consumers: `drop`, and `b`
// through `flat`, which is a view of `a`.
config::ModelSpec Fork() {
  config::ModelSpec model;
  model.inputs = {{"x", {4}}};
  model.layers = {DenseSpec("a", "x", 3),    FlattenSpec("flat", "a"),
                  DenseSpec("b", "flat", 2), DropoutSpec("drop", "a", 0.5),
                  DenseSpec("c", "drop", 2), MergeSpec("sum", "add", {"b", "c"})};
  model.losses = {LossOf("mean_squared_error", "sum")};
  return model;
}

TEST_CASE("the variables of a layer follow those of the layers above it") {
  const GraphNodes nodes = NodesOf(Fork());
  REQUIRE(nodes.layers.size() == 6);
  std::vector<std::size_t> begins, ends;
  for (const GraphLayer& node : nodes.layers) {
    begins.push_back(node.first_variable);
    ends.push_back(node.end_variable());
  }
  CHECK(begins == std::vector<std::size_t>{0, 2, 2, 4, 4, 6});
  CHECK(ends == std::vector<std::size_t>{2, 2, 4, 4, 6, 6});
  CHECK(nodes.variables.size() == 6);
  CHECK(nodes.variables[2].name == "b/kernel");
  CHECK(nodes.label_elements == 2);
}

TEST_CASE("a view shares its input's storage, whose consumers are those of both") {
  const GraphNodes nodes = NodesOf(Fork());
  CHECK(nodes.values[IndexOf(nodes, "flat")].storage == nodes.values[IndexOf(nodes, "a")].storage);
  CHECK(nodes.storages.size() == nodes.values.size() - 1);
  CHECK(StorageOf(nodes, "a").consumers == 2);     // b, through the view, and drop
  CHECK(StorageOf(nodes, "drop").consumers == 1);  // c
  CHECK(StorageOf(nodes, "sum").consumers == 1);   // the loss
  CHECK(StorageOf(nodes, "sum").at_loss);
  CHECK_FALSE(StorageOf(nodes, "b").at_loss);
}

TEST_CASE("a value needs a gradient if a variable is upstream") {
  config::ModelSpec model = Fork();
  model.layers.insert(model.layers.begin(), ActivationSpec("first", "x", "relu"));
  model.layers[1].inputs = {"first"};
  const GraphNodes nodes = NodesOf(model);
  for (const GraphValue& value : nodes.values) {
    INFO(value.name);
    CHECK(value.needs_gradient == (value.name != "x" && value.name != "first"));
    CHECK(nodes.storages[value.storage].needs_gradient == value.needs_gradient);
  }
}

TEST_CASE("only layers that draw random numbers have a key") {
  const GraphNodes nodes = NodesOf(Fork());
  CHECK(nodes.keys == 1);
  for (const GraphLayer& node : nodes.layers) {
    INFO(node.layer->name());
    CHECK(node.key.has_value() == (node.layer->name() == "drop"));
  }
}

TEST_CASE("without mixed precision every value is float32 and no cast is made") {
  const GraphNodes nodes = NodesOf(Fork());
  for (const GraphStorage& storage : nodes.storages) {
    CHECK(storage.type == Element::kFloat32);
    CHECK_FALSE(storage.cast_wanted);
  }
  for (const GraphLayer& node : nodes.layers)
    for (std::size_t v = node.first_variable; v < node.end_variable(); ++v)
      CHECK_FALSE(nodes.IsNarrowed(node, v));
}

TEST_CASE(
    "mixed precision has 16 bits between layers, and float32 at a loss and where the job requires "
    "it") {
  config::ModelSpec model = Fork();
  model.layers[4].dtype = "float32";  // c
  const GraphNodes nodes = NodesOf(model, Precision::kMixedBFloat16);
  CHECK(StorageOf(nodes, "a").type == Element::kBFloat16);
  CHECK(StorageOf(nodes, "b").type == Element::kBFloat16);
  CHECK(StorageOf(nodes, "c").type == Element::kFloat32);
  CHECK(StorageOf(nodes, "sum").type == Element::kFloat32);
  // a reads x in 16 bits, c reads drop as float32, and sum reads b as float32.
  CHECK(StorageOf(nodes, "x").cast_wanted);
  CHECK(StorageOf(nodes, "drop").cast_wanted);
  CHECK(StorageOf(nodes, "b").cast_wanted);
  CHECK_FALSE(StorageOf(nodes, "a").cast_wanted);
  CHECK_FALSE(StorageOf(nodes, "c").cast_wanted);
  CHECK(nodes.CastTypeOf(StorageOf(nodes, "x")) == Element::kBFloat16);
  CHECK(nodes.CastTypeOf(StorageOf(nodes, "drop")) == Element::kFloat32);
  // Products read their kernels as 16 bits, and their biases as float32.
  CHECK(nodes.IsNarrowed(nodes.layers[0], 0));
  CHECK_FALSE(nodes.IsNarrowed(nodes.layers[0], 1));
  CHECK_FALSE(nodes.IsNarrowed(nodes.layers[4], 4));
}

TEST_CASE("embedding layers of one table read consecutive ranges of its ids") {
  config::ModelSpec model;
  model.inputs = {{"user", {1}}, {"items", {3}}, {"more", {2}}, {"weights", {2}}};
  model.tables = {TableOf("people", 4), TableOf("things", 4)};
  model.layers = {EmbeddingSpec("i", "things", {"items"}, "sum"),
                  EmbeddingSpec("u", "people", {"user"}, "sum"),
                  EmbeddingSpec("m", "things", {"more"}, "sum", "weights"),
                  MergeSpec("all", "concatenate", {"i", "u", "m"}), DenseSpec("out", "all", 1)};
  model.losses = {LossOf("mean_squared_error", "out")};
  const GraphNodes nodes = NodesOf(model);
  CHECK(nodes.table_ids == std::vector<std::size_t>{1, 5});
  CHECK(nodes.layers[0].table == 1);
  CHECK(nodes.layers[0].ids_before == 0);
  CHECK(nodes.layers[1].table == 0);
  CHECK(nodes.layers[1].ids_before == 0);
  CHECK(nodes.layers[2].ids_before == 3);
  CHECK(nodes.layers[2].weights == IndexOf(nodes, "weights"));
  CHECK(nodes.inputs[1].dtype == tensor::DType::kInt64);
  CHECK(nodes.inputs[3].dtype == tensor::DType::kFloat32);
  CHECK(nodes.layers[3].embedding == nullptr);
}

TEST_CASE("a mistake is reported as the user's, and no nodes are made") {
  const std::unique_ptr<Backend> backend = *MakeBackend({"cpu", 1});
  config::ModelSpec model = Fork();
  model.layers.pop_back();  // then the loss has nothing to read
  const auto nodes = GraphBuilder(*backend, Precision::kFloat32).Build(model);
  CHECK(BlameOf(nodes.status()) == Blame::kUser);
  CHECK(std::string(nodes.status().message()).find("`sum` is not a layer") != std::string::npos);
}

}  // namespace
}  // namespace evergrad::worker
