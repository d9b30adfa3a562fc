// Tests training end to end in one process, without a network: reader, plan, graph, shards with
// their initializers, ledger and Adam. The loss curve must equal that of an independent float64
// implementation. make_curves.py is this implementation, and has written its curves to curves.json.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "common/plan/plan.h"
#include "common/sharding/partitioner.h"
#include "ps_server/shard/shard.h"
#include "tests/support/paths.h"
#include "worker/data/dataset.h"
#include "worker/graph/graph.h"

namespace evergrad {
namespace {

config::LayerSpec Layer(const char* type, const char* name, const char* input) {
  config::LayerSpec layer;
  layer.type = type, layer.name = name, layer.inputs = {input};
  return layer;
}
config::LayerSpec Dense(const char* name, const char* input, std::uint64_t units,
                        const std::string& activation) {
  auto layer = Layer("dense", name, input);
  layer.units = units, layer.activation = activation;
  return layer;
}
config::LayerSpec Conv(const char* name, const char* input, std::uint64_t filters,
                       const std::string& activation) {
  auto layer = Layer("conv2d", name, input);
  layer.filters = filters, layer.kernel_h = layer.kernel_w = 3, layer.activation = activation;
  return layer;
}
config::LayerSpec Pool(const char* name, const char* input) {
  auto layer = Layer("max_pooling2d", name, input);
  layer.pool_h = layer.pool_w = layer.stride_h = layer.stride_w = 2;
  return layer;
}

config::ModelSpec Model(const std::string& name, const std::string& activation) {
  config::ModelSpec model;
  model.inputs = {{"image", {28, 28, 1}}};
  if (name == "mlp") {
    model.layers = {Layer("flatten", "flat", "image"), Dense("dense1", "flat", 256, activation),
                    Dense("dense2", "dense1", 128, activation),
                    Dense("logits", "dense2", 10, "linear")};
  } else {
    model.layers = {Conv("conv1", "image", 8, activation),  Pool("pool1", "conv1"),
                    Conv("conv2", "pool1", 16, activation), Pool("pool2", "conv2"),
                    Layer("flatten", "flat", "pool2"),      Dense("dense1", "flat", 32, activation),
                    Dense("logits", "dense1", 10, "linear")};
  }
  config::LossSpec loss;
  loss.type = "sparse_categorical_crossentropy", loss.from_logits = true, loss.output = "logits",
  loss.labels = "label";
  model.losses = {loss};
  model.metrics = {"accuracy"};
  return model;
}

constexpr ShardEpoch kEpoch{1, 1};
constexpr MapVersion kStart{1, 1};

// A variable and its shards.
struct Variable {
  tensor::Shape shape;
  std::vector<std::unique_ptr<ps_server::Shard>> shards;
  std::vector<float> values, gradient;

  void Pull() {
    std::size_t at = 0;
    for (const auto& shard : shards) {
      ps_server::Pull pull;
      pull.epoch = kEpoch;
      for (const auto& chunk : shard->Read(pull).result.chunks) {
        std::copy_n(reinterpret_cast<const float*>(chunk.bytes.data()),
                    chunk.bytes.size() / sizeof(float),
                    values.begin() + static_cast<std::ptrdiff_t>(at));
        at += chunk.bytes.size() / sizeof(float);
      }
    }
    REQUIRE(at == values.size());
  }
  void Push(ClosureId closure, UpdateIndex update, std::uint64_t global_step) {
    const std::size_t row_elements = shape.row_elements();
    for (const auto& shard : shards) {
      const auto& settings = shard->settings();
      ps_server::Push push;
      push.epoch = kEpoch, push.closure = closure, push.update = update, push.attempt = {1, 1},
      push.global_step = global_step;
      push.rows = settings.row_end - settings.row_begin;
      push.payload = std::as_bytes(std::span<const float>(gradient).subspan(
          settings.row_begin * row_elements, push.rows * row_elements));
      const auto result = shard->Apply(push);
      INFO(result.message);
      REQUIRE(result.code == ps_server::PushCode::kApplied);
    }
  }
};

struct Curve {
  std::string activation;
  std::uint64_t seed = 0;
  std::vector<double> losses;
};
struct Golden {
  std::uint32_t batch_size = 0;
  double scale = 0, learning_rate = 0;
  std::map<std::string, Curve> curves;
};
Golden ReadGolden() {
  std::ifstream file(test::SourceDir() + "/tests/golden/training/curves.json");
  REQUIRE(file.good());
  const auto json = nlohmann::json::parse(file);
  Golden golden{json.at("batch_size").get<std::uint32_t>(),
                json.at("scale").get<double>(),
                json.at("learning_rate").get<double>(),
                {}};
  for (const auto& [name, curve] : json.at("curves").items()) {
    golden.curves[name] = {curve.at("activation").get<std::string>(),
                           curve.at("seed").get<std::uint64_t>(),
                           curve.at("losses").get<std::vector<double>>()};
  }
  return golden;
}

std::vector<Variable> MakeVariables(const worker::Graph& graph, const Golden& golden,
                                    std::uint64_t seed, std::uint64_t shards) {
  std::vector<Variable> variables;
  std::uint32_t next_shard = 0;
  for (const worker::Variable& described : graph.variables()) {
    Variable variable;
    variable.shape = described.shape;
    variable.values.resize(described.shape.elements());
    variable.gradient.resize(described.shape.elements());
    const auto cut = sharding::PartitionRows(sharding::FixedShards{shards}, described.shape);
    REQUIRE(cut.ok());
    for (const sharding::RowRange& rows : *cut) {
      ps_server::ShardSettings settings;
      settings.job = JobUid(1);
      settings.shard = ShardId(next_shard++);
      settings.variable = described.name;
      settings.variable_shape = described.shape;
      settings.row_begin = rows.begin, settings.row_end = rows.end;
      settings.initializer.type = described.initializer;
      settings.initializer.seed = seed;
      settings.initializer.fan_in = described.fan_in,
      settings.initializer.fan_out = described.fan_out;
      settings.optimizer.type = "adam";
      settings.optimizer.learning_rate = golden.learning_rate;
      auto shard = ps_server::Shard::FromSeed(settings, kEpoch, kStart, {});
      INFO(shard.status().ToString());
      REQUIRE(shard.ok());
      variable.shards.push_back(*std::move(shard));
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

struct Run {
  std::vector<double> losses;
  std::vector<std::vector<float>> values;  // after the last step
};

Run Train(const std::string& name, const worker::Dataset& data, const Golden& golden,
          std::uint64_t shards, std::size_t steps) {
  auto backend = worker::MakeBackend({"cpu", 1});
  REQUIRE(backend.ok());
  auto graph = worker::Graph::Build(Model(name, golden.curves.at(name).activation), backend->get());
  INFO(graph.status().ToString());
  REQUIRE(graph.ok());
  std::vector<Variable> variables =
      MakeVariables(**graph, golden, golden.curves.at(name).seed, shards);
  plan::PlanSpec spec;
  spec.train_examples = data.examples(), spec.batch_size = golden.batch_size,
  spec.steps_per_closure = 16, spec.epochs = 2, spec.shuffle = false;
  const auto plan = plan::Plan::Create(spec);
  REQUIRE(plan.ok());

  std::vector<worker::AnyIn> weights;
  std::vector<worker::AnyOut> gradients;
  for (Variable& variable : variables) {
    weights.emplace_back(variable.values);
    gradients.emplace_back(variable.gradient);
  }
  Run run;
  std::vector<float> images, labels;
  for (std::uint64_t c = 0; run.losses.size() < steps; ++c) {
    const ClosureId closure(c);
    for (std::uint32_t u = 0; u < plan->Closure(closure).steps && run.losses.size() < steps; ++u) {
      const auto examples = plan->Batch(closure, UpdateIndex(u));
      images.resize(examples.size() * 784);
      labels.resize(examples.size());
      REQUIRE(data.Read(examples, {std::as_writable_bytes(std::span(images)),
                                   std::as_writable_bytes(std::span(labels))})
                  .ok());
      for (Variable& variable : variables) variable.Pull();
      worker::Batch batch;
      batch.size = static_cast<std::int64_t>(examples.size()), batch.inputs = {images},
      batch.labels = labels;
      const auto step = (*graph)->TrainStep(weights, batch, 0, gradients);
      INFO(step.status().ToString());
      REQUIRE(step.ok());
      run.losses.push_back(step->loss_sum / static_cast<double>(batch.size));
      for (Variable& variable : variables)
        variable.Push(closure, UpdateIndex(u), plan->GlobalStep(closure, UpdateIndex(u)));
    }
  }
  for (Variable& variable : variables) {
    variable.Pull();
    run.values.push_back(variable.values);
  }
  return run;
}

config::FieldSpec Scaled(double factor) {
  config::FieldSpec image;
  image.name = "image";
  config::Transform& transform = image.transforms.emplace_back();
  transform.type = "scale", transform.value = factor;
  return image;
}

std::unique_ptr<worker::Dataset> OpenData(const Golden& golden) {
  const std::string folder = test::DataDir() + "/fashion-mnist-12k";
  config::SourceSpec source;
  source.images = folder + "/train-images-idx3-ubyte.gz",
  source.labels = folder + "/train-labels-idx1-ubyte.gz";
  if (!std::ifstream(source.images).good()) {
    std::cout << "skipped: no " << source.images << "; set EVERGRAD_DATA\n";
    return nullptr;
  }
  auto data = worker::OpenDataset(source, {Scaled(golden.scale)}, nullptr);
  INFO(data.status().ToString());
  REQUIRE(data.ok());
  return *std::move(data);
}

// Returns the largest relative difference among the first `steps` losses.
double Worst(const std::vector<double>& got, const std::vector<double>& want, std::size_t steps) {
  REQUIRE(got.size() >= steps);
  REQUIRE(want.size() >= steps);
  double worst = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const double error = std::abs(got[i] - want[i]) / want[i];
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

void CheckCurve(const std::string& name, std::size_t steps) {
  const Golden golden = ReadGolden();
  const auto data = OpenData(golden);
  if (!data) return;
  const std::vector<double>& want = golden.curves.at(name).losses;
  const Run run = Train(name, *data, golden, 1, steps);
  CHECK(Worst(run.losses, want, 100) <= 1e-4);
  CHECK(Worst(run.losses, want, steps) <= 1e-3);
  // if the loss had not fallen, the comparison would show little
  CHECK(run.losses.back() < 0.5 * run.losses.front());
}

TEST_CASE("the loss curve of the MLP equals the float64 implementation's") {
  CheckCurve("mlp", 200);
}
TEST_CASE("the loss curve of the CNN equals the float64 implementation's") {
  CheckCurve("cnn", 200);
}
// Only the first 100 steps are compared. make_curves.py explains why a model with relu, pooling and
// Adam cannot be compared for longer.
TEST_CASE("the loss curve of the CNN with relu equals the float64 implementation's") {
  CheckCurve("cnn_relu", 100);
}

TEST_CASE("training twice, and training with variables in three partitions, gives the same bits") {
  const Golden golden = ReadGolden();
  const auto data = OpenData(golden);
  if (!data) return;
  const Run once = Train("cnn", *data, golden, 1, 20);
  for (const std::uint64_t shards : {1, 3}) {
    const Run again = Train("cnn", *data, golden, shards, 20);
    CHECK(again.losses == once.losses);
    CHECK(again.values == once.values);
  }
}

}  // namespace
}  // namespace evergrad
