#include "worker/graph/graph.h"

#include <dlfcn.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/layers/layer_descriptor.h"
#include "common/random/philox.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/backend/cuda/emulated_library.h"
#include "tests/unit/worker/backend/fixtures/apart_backend.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "tests/unit/worker/graph/reference_fixture.h"
#include "worker/graph/host_step.h"

namespace evergrad::worker {
namespace {

using namespace test;

// The backends on which the tests run: the CPU, and a backend whose memory the host cannot read.
struct OnCpu {
  static std::unique_ptr<Backend> Make(int threads) { return *MakeBackend({"cpu", threads}); }
};
struct OnApart {
  static std::unique_ptr<Backend> Make(int threads) {
    ApartOptions options;
    options.threads = threads;
    return std::make_unique<ApartBackend>(options);
  }
};
// Like OnApart, but each call of a step is compared with the same call of earlier steps.
struct OnApartCompared {
  static std::unique_ptr<Backend> Make(int threads) {
    ApartOptions options;
    options.threads = threads, options.replay = options.late_in = false;
    return std::make_unique<ApartBackend>(options);
  }
};

// A graph with random weights, inputs and labels.
template <typename On>
struct BenchOn {
  explicit BenchOn(const config::ModelSpec& spec, int threads = 1) : model(spec) {
    backend = On::Make(threads);
    auto built = Graph::Build(model, backend.get());
    INFO(built.status().ToString());
    REQUIRE(built.ok());
    graph = *std::move(built);
    steps = std::make_unique<HostStep>(graph.get(), backend.get());
    for (const Variable& variable : graph->variables()) {
      weights.emplace_back(variable.shape.elements());
      gradients.emplace_back(variable.shape.elements());
      for (std::size_t i = 0; i < weights.back().size(); ++i)
        weights.back()[i] = 0.2f * random::Uniform(random::KeyOf(1, variable.name), i) - 0.1f;
    }
  }
  void Fill(std::int64_t size, float classes = 3) {
    inputs.clear();
    for (const config::InputSpec& input : model.inputs) {
      std::size_t n = static_cast<std::size_t>(size);
      for (const std::uint64_t d : input.shape) n *= d;
      inputs.emplace_back(n);
      for (std::size_t i = 0; i < n; ++i)
        inputs.back()[i] = random::Uniform(random::KeyOf(2, input.name), i);
    }
    labels.resize(static_cast<std::size_t>(size) * graph->label_elements());
    for (std::size_t i = 0; i < labels.size(); ++i)
      labels[i] = std::floor(classes * random::Uniform(3, i));
    batch.size = size;
    batch.inputs.assign(inputs.begin(), inputs.end());
    batch.labels = labels;
  }
  absl::StatusOr<StepResult> Train(std::uint64_t dropout_key = 5) {
    steps->AllChanged();
    return steps->TrainStep({weights.begin(), weights.end()}, {}, batch, dropout_key,
                            {gradients.begin(), gradients.end()}, {});
  }
  absl::StatusOr<StepResult> Evaluate() {
    steps->AllChanged();
    return steps->Evaluate({weights.begin(), weights.end()}, {}, batch);
  }

  config::ModelSpec model;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<HostStep> steps;
  std::vector<std::vector<float>> weights, gradients, inputs;
  std::vector<float> labels;
  Batch batch;
};

config::ModelSpec Small() {
  config::ModelSpec model;
  model.inputs = {{"x", {4}}};
  model.layers = {DenseSpec("a", "x", 5, "relu"), DenseSpec("b", "a", 3)};
  model.losses = {LossOf("sparse_categorical_crossentropy", "b", true)};
  model.metrics = {"accuracy"};
  return model;
}

TEST_CASE(
    "variables have the names, shapes and fans of Keras, in layer order, kernel before bias") {
  using Bench = BenchOn<OnCpu>;
  Bench bench(SmallCnnModel());
  const auto& variables = bench.graph->variables();
  std::vector<std::string> lines;
  for (const Variable& v : variables)
    lines.push_back(v.name + " " + v.shape.ToString() + " " + v.initializer + " " +
                    std::to_string(v.fan_in) + " " + std::to_string(v.fan_out));
  CHECK(lines == std::vector<std::string>{
                     "conv1/kernel (3, 3, 1, 8) glorot_uniform 9 72", "conv1/bias (8) zeros 8 8",
                     "conv2/kernel (3, 3, 8, 16) glorot_uniform 72 144",
                     "conv2/bias (16) zeros 16 16", "dense1/kernel (400, 32) glorot_uniform 400 32",
                     "dense1/bias (32) zeros 32 32", "logits/kernel (32, 10) glorot_uniform 32 10",
                     "logits/bias (10) zeros 10 10"});
  CHECK(bench.graph->label_elements() == 1);
}

TEMPLATE_TEST_CASE("the summary is Keras' table", "", OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  CHECK(Bench(SmallCnnModel()).graph->Summary() ==
        R"(__________________________________________________________________
 Layer (type)                Output Shape              Param #
==================================================================
 image (InputLayer)          [(None, 28, 28, 1)]       0
 conv1 (Conv2D)              (None, 26, 26, 8)         80
 pool1 (MaxPooling2D)        (None, 13, 13, 8)         0
 conv2 (Conv2D)              (None, 11, 11, 16)        1168
 pool2 (MaxPooling2D)        (None, 5, 5, 16)          0
 flat (Flatten)              (None, 400)               0
 dense1 (Dense)              (None, 32)                12832
 logits (Dense)              (None, 10)                330
==================================================================
Total params: 14,410
Trainable params: 14,410
Non-trainable params: 0
__________________________________________________________________
)");
}

TEMPLATE_TEST_CASE(
    "normalization has Keras' variables, and its moving averages are no trainable parameters", "",
    OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  config::ModelSpec model = Small();
  model.layers.insert(model.layers.begin() + 1, {PlainSpec("n", "batch_normalization", "a"),
                                                 PlainSpec("m", "layer_normalization", "n")});
  model.layers[3].inputs = {"m"};
  Bench bench(model);
  std::vector<std::string> lines;
  for (const Variable& v : bench.graph->variables())
    if (v.name[0] != 'a' && v.name[0] != 'b')
      lines.push_back(v.name + " " + v.initializer + " " + std::to_string(v.momentum));
  CHECK(lines == std::vector<std::string>{"n/gamma ones -1.000000", "n/beta zeros -1.000000",
                                          "n/moving_mean zeros 0.990000",
                                          "n/moving_variance ones 0.990000",
                                          "m/gamma ones -1.000000", "m/beta zeros -1.000000"});
  CHECK(bench.graph->Summary().find(" n (BatchNormalization)      (None, 5)                 20") !=
        std::string::npos);
  CHECK(bench.graph->Summary().find(
            "Total params: 73\nTrainable params: 63\nNon-trainable params: 10\n") !=
        std::string::npos);
}

TEST_CASE("the summary lists connections where the model is not a chain") {
  using Bench = BenchOn<OnCpu>;
  config::ModelSpec model = Small();
  model.layers.push_back(DenseSpec("c", "a", 3));
  model.losses.push_back(LossOf("sparse_categorical_crossentropy", "c", true));
  const std::string summary = Bench(model).graph->Summary();
  CHECK(summary.find("Connected to") != std::string::npos);
  CHECK(summary.find(" c (Dense)                   (None, 3)                 18         ['a']") !=
        std::string::npos);
}

TEST_CASE("a mistake in a model is reported with its position, its layer and the expected value") {
  struct Row {
    std::string want;
    std::function<void(config::ModelSpec&)> spoil;
  };
  const auto image = [](config::ModelSpec& m, std::vector<std::uint64_t> shape,
                        config::LayerSpec layer) {
    m.inputs = {{"x", std::move(shape)}};
    m.layers = {std::move(layer), FlattenSpec("f", "l"), DenseSpec("b", "f", 3)};
  };
  const std::vector<Row> rows = {
      {"layer `l`: the kernel is larger than its input: kernel=5x5 input=(3, 3, 8)",
       [&](auto& m) {
         image(m, {3, 3, 8}, Conv2dSpec("l", "x", 4, 5, 5));
       }},
      {"layer `l`: global_average_pooling2d needs an input (height, width, channels), got (4)",
       [](auto& m) {
         m.layers = {PlainSpec("l", "global_average_pooling2d", "x"), DenseSpec("b", "l", 3)};
       }},
      {"layer `l`: epsilon must be above 0: epsilon=0",
       [](auto& m) {
         m.layers = {PlainSpec("l", "layer_normalization", "x"), DenseSpec("b", "l", 3)};
         m.layers[0].epsilon = 0;
       }},
      {"layer `l`: momentum must be in [0, 1): momentum=1",
       [](auto& m) {
         m.layers = {PlainSpec("l", "batch_normalization", "x"), DenseSpec("b", "l", 3)};
         m.layers[0].momentum = 1;
       }},
      {"job.yaml:12:9: layer `l`: the pool is larger than its input: pool=2x4 input=(3, 3, 8)",
       [&](auto& m) {
         image(m, {3, 3, 8}, MaxPooling2dSpec("l", "x", 2, 4, 2, 2));
         m.layers[0].where = {"job.yaml", 12, 9};
       }},
      {"layer `l`: conv2d needs an input (height, width, channels), got (3, 3)",
       [&](auto& m) {
         image(m, {3, 3}, Conv2dSpec("l", "x", 4, 1, 1));
       }},
      {"layer `l`: max_pooling2d needs an input (height, width, channels), got (7)",
       [&](auto& m) { image(m, {7}, MaxPooling2dSpec("l", "x", 2, 2, 2, 2)); }},
      {"layer `l`: filters must be at least 1: filters=0",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 0, 1, 1));
       }},
      {"layer `l`: kernel_size must be at least 1: kernel_size=0x3",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 1, 0, 3));
       }},
      {"layer `l`: strides must be at least 1: strides=1x0",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 1, 1, 1, 1, 0));
       }},
      {"layer `l`: pool_size must be at least 1: pool_size=2x0",
       [&](auto& m) {
         image(m, {3, 3, 1}, MaxPooling2dSpec("l", "x", 2, 0, 1, 1));
       }},
      {"layer `l`: strides must be at least 1: strides=0x1",
       [&](auto& m) {
         image(m, {3, 3, 1}, MaxPooling2dSpec("l", "x", 2, 2, 0, 1));
       }},
      {"layer `l`: unknown padding `full`; expected one of valid, same",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 1, 1, 1, 1, 1, "full"));
       }},
      {"layer `l`: unknown activation `gelu`; expected one of linear, relu, tanh, sigmoid, softmax",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 1, 1, 1, 1, 1, "valid", "gelu"));
       }},
      {"layer `l`: its kernel has too many elements: shape=(65536, 65536, 1, 4) "
       "elements=17179869184 limit=2147483647",
       [&](auto& m) {
         image(m, {3, 3, 1}, Conv2dSpec("l", "x", 4, 65536, 65536, 1, 1, "same"));
       }},
      {"layer `a`: units must be at least 1: units=0", [](auto& m) { m.layers[0].units = 0; }},
      {"layer `a`: unknown activation `swish`; expected one of linear, relu, tanh, sigmoid, "
       "softmax",
       [](auto& m) { m.layers[0].activation = "swish"; }},
      {"layer `a`: its kernel has too many elements: shape=(4, 4294967296) elements=17179869184 "
       "limit=2147483647",
       [](auto& m) { m.layers[0].units = std::uint64_t{1} << 32; }},
      {"layer `d`: rate must be in [0, 1): rate=1",
       [](auto& m) { m.layers.insert(m.layers.begin(), DropoutSpec("d", "x", 1.0)); }},
      {"layer `d`: rate must be in [0, 1): rate=-0.1",
       [](auto& m) { m.layers.insert(m.layers.begin(), DropoutSpec("d", "x", -0.1)); }},
      {"layer `d`: rate must be in [0, 1): rate=nan",
       [](auto& m) { m.layers.insert(m.layers.begin(), DropoutSpec("d", "x", std::nan(""))); }},
      {absl::StrCat("layer `a`: unknown type `lstm`; expected one of ",
                    absl::StrJoin(config::LayerTypes(), ", ")),
       [](auto& m) { m.layers[0].type = "lstm"; }},
      {"layer `a`: its input `y` is neither a layer nor a model input",
       [](auto& m) { m.layers[0].inputs = {"y"}; }},
      {"layer `a`: its input `b` is not above it; a layer may name only model inputs and "
       "layers above it",
       [](auto& m) { m.layers[0].inputs = {"b"}; }},
      {"layer `a`: its input `a` is not above it; a layer may name only model inputs and "
       "layers above it",
       [](auto& m) { m.layers[0].inputs = {"a"}; }},
      {"layer `b`: a dense layer reads one input, got 2",
       [](auto& m) {
         m.layers[1].inputs = {"a", "x"};
       }},
      {"layer `b`: the layer has no input", [](auto& m) { m.layers[1].inputs.clear(); }},
      {"layer `a`: duplicate name: another layer or a model input has the same name",
       [](auto& m) { m.layers[1].name = "a"; }},
      {"layer `x`: duplicate name: another layer or a model input has the same name",
       [](auto& m) { m.layers[0].name = "x"; }},
      {"layer ``: a layer needs a name", [](auto& m) { m.layers[0].name = ""; }},
      {"layer `c`: the output of this layer reaches no loss; remove the layer or use its output",
       [](auto& m) { m.layers.push_back(DenseSpec("c", "a", 2)); }},
      {"input `z`: no layer reads it",
       [](auto& m) {
         m.inputs.push_back({"z", {2}});
       }},
      {"duplicate model input: name=x",
       [](auto& m) {
         m.inputs.push_back({"x", {2}});
       }},
      {"input `x`: shape (4, 0) has 0 elements, want 1..2147483647",
       [](auto& m) {
         m.inputs[0].shape = {4, 0};
       }},
      {"loss `hinge`: unknown type; expected one of sparse_categorical_crossentropy, "
       "binary_crossentropy, "
       "mean_squared_error",
       [](auto& m) { m.losses[0].type = "hinge"; }},
      {"job.yaml:30:5: loss `sparse_categorical_crossentropy`: its output `x` is not a layer",
       [](auto& m) {
         m.losses[0].output = "x";
         m.losses[0].where = {"job.yaml", 30, 5};
       }},
      {"loss `sparse_categorical_crossentropy`: needs at least 2 classes in the last axis: "
       "output=`b` shape=(1)",
       [](auto& m) { m.layers[1].units = 1; }},
      {"loss `sparse_categorical_crossentropy`: from_logits is set, but output `b` ends in "
       "softmax; remove the key or the activation",
       [](auto& m) { m.layers[1].activation = "softmax"; }},
      {"loss `binary_crossentropy`: from_logits is set, but output `b` ends in sigmoid; remove the "
       "key or the activation",
       [](auto& m) {
         m.losses[0].type = "binary_crossentropy";
         m.layers[1].activation = "sigmoid";
       }},
      {"loss `mean_squared_error`: from_logits does not apply to this loss; remove the key",
       [](auto& m) { m.losses[0].type = "mean_squared_error"; }},
      {"loss `mean_squared_error`: metric `accuracy` is not defined for this loss",
       [](auto& m) { m.losses[0] = LossOf("mean_squared_error", "b"); }},
      {"loss `binary_crossentropy`: metric `accuracy` needs one label per example: output=`b` "
       "labels=3",
       [](auto& m) { m.losses[0] = LossOf("binary_crossentropy", "b"); }},
      {"unknown metric `f1`; one of accuracy, binary_accuracy, auc, root_mean_squared_error",
       [](auto& m) { m.metrics = {"f1"}; }},
      {"a model needs a loss: losses=0", [](auto& m) { m.losses.clear(); }},
      {"a model needs at least one layer: layers=0", [](auto& m) { m.layers.clear(); }},
      {"a model needs at least one input: inputs=0", [](auto& m) { m.inputs.clear(); }},
      {"loss `mean_squared_error`: the number of labels per example differs from the first loss: "
       "first=1 this=3",
       [](auto& m) { m.losses.push_back(LossOf("mean_squared_error", "b")); }},
      {"loss `sparse_categorical_crossentropy`: all losses must use the same field of labels: "
       "first=label this=other",
       [](auto& m) {
         m.losses.push_back(m.losses[0]);
         m.losses[1].labels = "other";
       }},
  };
  auto backend = *MakeBackend({"cpu", 1});
  for (const Row& row : rows) {
    config::ModelSpec model = Small();
    row.spoil(model);
    const auto graph = Graph::Build(model, backend.get());
    CHECK(graph.status().message() == row.want);
    CHECK(graph.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(BlameOf(graph.status()) == Blame::kUser);
  }
  // If the product of the dimensions overflows, or a shape has too many axes, the graph is refused
  // with the message about the shape.
  config::ModelSpec model = Small();
  model.inputs[0].shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  CHECK(BlameOf(Graph::Build(model, backend.get()).status()) == Blame::kUser);
  model.inputs[0].shape.assign(9, 1);
  CHECK(BlameOf(Graph::Build(model, backend.get()).status()) == Blame::kUser);
}

TEMPLATE_TEST_CASE("a label that is no class is the user's error and names value and classes", "",
                   OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  Bench bench(Small());
  for (const float bad :
       {3.0f, -1.0f, 1.5f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    bench.Fill(4);
    bench.labels[2] = bad;
    for (const auto& result : {bench.Train(), bench.Evaluate()}) {
      CHECK(result.status().message() ==
            absl::StrCat("label out of range: value=", static_cast<double>(bad),
                         " classes=3 example_in_batch=2"));
      CHECK(BlameOf(result.status()) == Blame::kUser);
    }
  }
  bench.Fill(4);
  CHECK(bench.Train().ok());

  config::ModelSpec model = Small();
  model.metrics.clear();
  model.losses = {LossOf("binary_crossentropy", "b", true)};
  Bench binary(model);
  binary.Fill(2, 1);
  binary.labels[5] = 1.25f;
  CHECK(binary.Train().status().message() ==
        "label out of range: value=1.25 want=0..1 example_in_batch=1");
}

TEMPLATE_TEST_CASE(
    "spans that do not fit are refused, and so is a batch too large for 32-bit indices", "", OnCpu,
    OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  Bench bench(Small());
  bench.Fill(4);
  CHECK(bench.Train().ok());
  bench.batch.size = 5;
  CHECK(bench.Train().status().message() == "input elements mismatch: input=x want=20 got=16");
  bench.batch.size = 0;
  CHECK(bench.Train().status().message() == "a batch needs at least one example: size=0");
  bench.batch.size = std::numeric_limits<std::int64_t>::max();
  CHECK(bench.Train().status().message() ==
        "batch too large: value=x examples=9223372036854775807 elements_per_example=4 "
        "elements_max=2147483647");
  CHECK(BlameOf(bench.Train().status()) == Blame::kUser);
  bench.Fill(4);
  bench.batch.labels = bench.batch.labels.first(3);
  CHECK(bench.Evaluate().status().message() == "label elements mismatch: want=4 got=3");
  bench.Fill(4);
  bench.weights[0].pop_back();
  CHECK(bench.Train().status().message() ==
        "weight elements mismatch: variable=a/kernel want=20 got=19");
  bench.weights[0].push_back(0);
  bench.gradients[3].push_back(0);
  CHECK(bench.Train().status().message() ==
        "gradient elements mismatch: variable=b/bias want=3 got=4");
  bench.gradients[3].pop_back();
  bench.batch.inputs.clear();
  CHECK(bench.Train().status().message() == "batch inputs mismatch: want=1 got=0");
}

TEMPLATE_TEST_CASE("a NaN or Inf in weights, inputs or gradients clears `finite`", "", OnCpu,
                   OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  for (const config::ModelSpec& model : {Small(), SmallCnnModel()}) {
    Bench bench(model);
    bench.Fill(3);
    REQUIRE(bench.Train()->finite);
    for (std::size_t v = 0; v < bench.weights.size(); ++v) {
      INFO(bench.graph->variables()[v].name);
      const float kept = bench.weights[v].back();
      for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        bench.weights[v].back() = bad;
        CHECK_FALSE(bench.Train()->finite);
      }
      bench.weights[v].back() = std::nanf("");
      CHECK_FALSE(bench.Evaluate()->finite);
      bench.weights[v].back() = kept;
    }
    CHECK(bench.Train()->finite);
    bench.inputs[0][7] = std::nanf("");
    CHECK_FALSE(bench.Train()->finite);
  }
  // The loss is finite, but a gradient is not: 1e30 * 1e30 appears only in the kernel's gradient.
  config::ModelSpec model = Small();
  model.metrics.clear();
  model.layers = {DenseSpec("b", "x", 1)};
  model.losses = {LossOf("mean_squared_error", "b")};
  Bench bench(model);
  bench.Fill(1);
  std::fill(bench.weights[0].begin(), bench.weights[0].end(), 0.0f);
  std::fill(bench.inputs[0].begin(), bench.inputs[0].end(), 1e30f);
  bench.weights[1][0] = 1e15f;
  const auto result = bench.Train();
  CHECK(std::isfinite(result->loss_sum));
  CHECK_FALSE(result->finite);
}

TEMPLATE_TEST_CASE("accuracy counts the largest logit, or the probability above a half", "", OnCpu,
                   OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  Bench bench(Small());
  bench.Fill(200);
  ReferenceBatch reference;
  reference.size = 200;
  reference.inputs.emplace_back(bench.inputs[0].begin(), bench.inputs[0].end());
  reference.labels.assign(bench.labels.begin(), bench.labels.end());
  std::vector<std::vector<double>> weights;
  for (const auto& w : bench.weights) weights.emplace_back(w.begin(), w.end());
  const auto want = ReferenceForward(bench.model, weights, reference, false, 0);
  CHECK(want.correct > 20);
  CHECK(want.correct < 180);
  CHECK(bench.Evaluate()->metrics[0].count == want.correct);
  CHECK(bench.Train()->metrics[0].count == want.correct);

  for (const bool logits : {false, true}) {
    config::ModelSpec model = Small();
    model.layers[1] = DenseSpec("b", "a", 1, logits ? "linear" : "sigmoid");
    model.losses = {LossOf("binary_crossentropy", "b", logits)};
    Bench binary(model);
    binary.Fill(200, 2);
    for (float& x : binary.inputs[0]) x = 8 * x - 4;
    reference.inputs[0].assign(binary.inputs[0].begin(), binary.inputs[0].end());
    reference.labels.assign(binary.labels.begin(), binary.labels.end());
    weights.clear();
    for (const auto& w : binary.weights) weights.emplace_back(w.begin(), w.end());
    CHECK(binary.Evaluate()->metrics[0].count ==
          ReferenceForward(model, weights, reference, false, 0).correct);
  }

  config::ModelSpec silent = Small();
  silent.metrics.clear();
  Bench none(silent);
  none.Fill(200);
  CHECK(none.Evaluate()->metrics.empty());
}

TEMPLATE_TEST_CASE("a step is a pure function: buffers used by other sizes before change no bit",
                   "", OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  for (const int threads : {1, 2}) {
    Bench fresh(SmallCnnModel(), threads), used(SmallCnnModel(), threads);
    for (const std::int64_t size : {9, 2, 17}) {
      used.Fill(size);
      REQUIRE(used.Train().ok());
      REQUIRE(used.Evaluate().ok());
    }
    fresh.Fill(5);
    used.Fill(5);
    const auto a = fresh.Train(), b = used.Train();
    CHECK(a->loss_sum == b->loss_sum);
    REQUIRE(a->metrics.size() == 1);
    CHECK(a->metrics[0].count == b->metrics[0].count);
    CHECK(fresh.gradients == used.gradients);
  }
}

TEMPLATE_TEST_CASE(
    "dropout draws by key: a retried step gets the same mask, another step another, evaluation "
    "none",
    "", OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  config::ModelSpec model = Small();
  model.layers.insert(model.layers.begin() + 1, DropoutSpec("drop", "a", 0.5));
  model.layers[2].inputs = {"drop"};
  Bench bench(model);
  bench.Fill(6);
  const double first = bench.Train(1)->loss_sum;
  const auto kept = bench.gradients;
  const double other = bench.Train(2)->loss_sum;
  CHECK(first != other);
  CHECK(bench.Train(1)->loss_sum == first);
  CHECK(bench.gradients == kept);
  const double evaluated = bench.Evaluate()->loss_sum;
  CHECK(evaluated == bench.Evaluate()->loss_sum);
  CHECK(evaluated != first);
  // If the layer sets a seed, it must draw other masks.
  model.layers[1].seed = 9;
  Bench seeded(model);
  seeded.Fill(6);
  CHECK(seeded.Train(1)->loss_sum != first);
}

TEST_CASE(
    "a batch that is out of memory reports the free bytes and a smaller batch size, which runs") {
  ApartOptions options;
  options.bytes_max = 100000;
  ApartBackend backend(options);
  const auto graph = *Graph::Build(Small(), &backend);
  HostStep steps(graph.get(), &backend);
  BenchOn<OnCpu> bench(Small());
  const auto train = [&](std::int64_t size) {
    bench.Fill(size);
    return steps.TrainStep({bench.weights.begin(), bench.weights.end()}, {}, bench.batch, 5,
                           {bench.gradients.begin(), bench.gradients.end()}, {});
  };
  REQUIRE(train(10).ok());
  const absl::Status refused = train(1500).status();
  CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
  // The 64 bytes are for the 5 + 3 outputs and their gradients. The inputs, labels, weights and
  // gradients of the model are already allocated.
  CHECK_THAT(std::string(refused.message()),
             Catch::StartsWith("out of memory for a batch: examples=1500 bytes_per_example=64 "
                               "examples_that_may_fit=10") &&
                 Catch::Contains("cause=out of memory: what="));
  CHECK(train(900).ok());
  CHECK(train(1500).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(train(10).ok());
  // Not even the inputs fit. The message must state how many examples may fit if their inputs are
  // allocated twice.
  const absl::Status inputs = train(8000).status();
  CHECK_THAT(std::string(inputs.message()),
             Catch::StartsWith("out of memory for a batch: examples=8000 bytes_per_example=104 "
                               "examples_that_may_fit=9") &&
                 Catch::Contains("cause=out of memory: what=x bytes=128000 free="));
  CHECK(train(900).ok());
}

TEST_CASE(
    "a layer that is out of memory for its workspace is named with a smaller batch size, which "
    "runs") {
  EmulatedControl& control = *reinterpret_cast<EmulatedControlEntry>(::dlsym(
      ::dlopen(EmulatedGpu().cuda_library.c_str(), RTLD_NOW | RTLD_LOCAL), "emulated_control"))();
  const absl::Cleanup as_before = [&, kind = control.fail_kind] {
    control.fail_kind = kind, control.fail_after_ops = 0;
  };
  const auto backend = *MakeBackend(EmulatedGpu());
  const auto graph = *Graph::Build(SmallCnnModel(), backend.get());
  HostStep steps(graph.get(), backend.get());
  BenchOn<OnCpu> bench(SmallCnnModel());
  const auto train = [&](std::int64_t size) {
    bench.Fill(size);
    return steps.TrainStep({bench.weights.begin(), bench.weights.end()}, {}, bench.batch, 5,
                           {bench.gradients.begin(), bench.gradients.end()}, {});
  };
  control.fail_kind = 4;  // EG_CUDA_NO_MEMORY
  control.fail_after_ops = 8;
  const absl::Status refused = train(40).status();
  REQUIRE(refused.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(
      std::string(refused.message()),
      Catch::StartsWith("out of memory for a batch: examples=40 bytes_per_example=") &&
          Catch::Contains(" examples_that_may_fit=20 cause=backend could not compute: layer="));
  CHECK(train(20).ok());
}

// Runs steps over a stream of batches. Each batch has its own memory. The memory is overwritten as
// soon as the step may have released it.
template <typename Bring>
std::vector<std::vector<float>> TrainStream(Backend* backend, std::uint64_t* ahead, Bring bring) {
  const auto graph = *Graph::Build(SmallCnnModel(), backend);
  HostStep steps(graph.get(), backend);
  BenchOn<OnCpu> weights(SmallCnnModel());
  constexpr int kBatches = 12;
  std::vector<std::unique_ptr<BenchOn<OnCpu>>> batches;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back(std::make_unique<BenchOn<OnCpu>>(SmallCnnModel()));
    batches.back()->Fill(i == 7 ? 3 : 4);  // one batch is short
    for (float& x : batches.back()->inputs[0]) x *= 1.0f + 0.1f * static_cast<float>(i);
  }
  std::vector<std::vector<float>> got;
  for (int i = 0; i < kBatches; ++i) {
    const auto next = [&] {
      return i + 1 < kBatches ? &batches[static_cast<std::size_t>(i) + 1]->batch : nullptr;
    };
    BenchOn<OnCpu>& present = *batches[static_cast<std::size_t>(i)];
    steps.Changed(0);
    const auto done = bring(&steps, i, next(), [&](const HostStep::Meanwhile& meanwhile) {
      if (i == 5)
        return steps.Evaluate({weights.weights.begin(), weights.weights.end()}, {}, present.batch,
                              meanwhile);
      return steps.TrainStep({weights.weights.begin(), weights.weights.end()}, {}, present.batch, 5,
                             {present.gradients.begin(), present.gradients.end()}, {}, meanwhile);
    });
    REQUIRE(done.ok());
    got.push_back({static_cast<float>(done->loss_sum)});
    got.insert(got.end(), present.gradients.begin(), present.gradients.end());
    for (float& x : present.inputs[0]) x = std::numeric_limits<float>::quiet_NaN();
  }
  *ahead = steps.prefetched();
  return got;
}

TEST_CASE("a batch uploaded before its step, during or after the step before, changes no bit") {
  std::uint64_t ahead = 0;
  const auto plainly = [](HostStep*, int, const Batch*, const auto& step) { return step(nullptr); };
  ApartBackend plain({});
  const auto want = TrainStream(&plain, &ahead, plainly);
  CHECK(ahead == 0);
  for (const bool late : {true, false}) {
    ApartOptions options;
    options.late_in = options.late_compute = late;
    ApartBackend meanwhile(options), between(options), changed(options);
    CHECK(TrainStream(&meanwhile, &ahead,
                      [](HostStep* steps, int, const Batch* next, const auto& step) {
                        return step([&] {
                          if (next != nullptr) steps->PrefetchBatch(*next);
                        });
                      }) == want);
    CHECK(ahead == 11);
    CHECK(TrainStream(&between, &ahead,
                      [](HostStep* steps, int, const Batch* next, const auto& step) {
                        const auto done = step(nullptr);
                        if (next != nullptr) steps->PrefetchBatch(*next);
                        return done;
                      }) == want);
    CHECK(ahead == 11);
    // Every third batch is uploaded twice. After every fourth batch, a batch is uploaded that is
    // not the next one.
    std::vector<float> other(4 * 28 * 28, 7.0f);  // as large as the largest batch
    CHECK(TrainStream(&changed, &ahead,
                      [&](HostStep* steps, int i, const Batch* next, const auto& step) {
                        return step([&] {
                          if (next == nullptr) return;
                          Batch wrong = *next;
                          wrong.inputs = {
                              std::span<const float>(other).first(next->inputs[0].floats.size())};
                          steps->PrefetchBatch(*next);
                          if (i % 3 == 0) steps->PrefetchBatch(*next);
                          if (i % 4 == 0) steps->PrefetchBatch(wrong);
                        });
                      }) == want);
    CHECK(ahead == 8);
    for (ApartBackend* const backend : {&meanwhile, &between, &changed})
      CHECK(backend->TakeBreaches().empty());
  }
  // The CPU backend reads the host's memory in place, so there is no upload.
  const auto cpu = *MakeBackend({"cpu", 1});
  CHECK(
      TrainStream(cpu.get(), &ahead, [](HostStep* steps, int, const Batch* next, const auto& step) {
        if (next != nullptr) steps->PrefetchBatch(*next);
        return step([] { FAIL("a CPU's step was computed by then"); });
      }) == want);
  CHECK(ahead == 0);
}

TEST_CASE("on an emulated GPU the next batch is uploaded during a step, and no step waits for it") {
  EmulatedControl& control = *reinterpret_cast<EmulatedControlEntry>(::dlsym(
      ::dlopen(EmulatedGpu().cuda_library.c_str(), RTLD_NOW | RTLD_LOCAL), "emulated_control"))();
  std::uint64_t ahead = 0;
  const auto plain = *MakeBackend(EmulatedGpu());
  const auto want =
      TrainStream(plain.get(), &ahead,
                  [](HostStep*, int, const Batch*, const auto& step) { return step(nullptr); });
  const auto device = *MakeBackend(EmulatedGpu());
  std::uint64_t asked = 0, overlapped = 0;
  int behind = 0;
  CHECK(TrainStream(device.get(), &ahead,
                    [&](HostStep* steps, int, const Batch* next, const auto& step) {
                      std::uint64_t in_step = 0;
                      const auto done = step([&] {
                        in_step = control.overlapped;
                        const std::uint64_t before = control.copies;
                        if (next != nullptr) steps->PrefetchBatch(*next);
                        asked += control.copies - before;
                      });
                      overlapped += control.overlapped - in_step;
                      behind += control.pending_in > 0 ? 1 : 0;
                      return done;
                    }) == want);
  CHECK(ahead == 11);
  CHECK(asked == 2 * 11);  // the image and the labels of each batch
  CHECK(overlapped > 0);   // copies that were done while kernels of the step before still ran
  CHECK(behind > 0);       // the step before has not waited for the copies
}

TEST_CASE("a step whose spans keep their addresses is replayed with their current contents") {
  ApartBackend backend({});
  const auto graph = *Graph::Build(SmallCnnModel(), &backend);
  HostStep steps(graph.get(), &backend);
  BenchOn<OnCpu> bench(SmallCnnModel());
  bench.Fill(4);
  for (int step = 0; step < 5; ++step) {
    for (float& x : bench.inputs[0]) x *= 1.1f;
    bench.weights[2][0] += 0.1f;
    steps.Changed(2);
    std::vector<std::vector<float>> gradients = bench.gradients;
    const auto there = steps.TrainStep({bench.weights.begin(), bench.weights.end()}, {},
                                       bench.batch, 5, {gradients.begin(), gradients.end()}, {});
    const auto here = bench.Train();
    CHECK(there->loss_sum == here->loss_sum);
    CHECK(gradients == bench.gradients);
  }
  CHECK(backend.steps() == 5);
  CHECK(backend.replayed() == 4);
  const std::uint64_t uploads = backend.uploads(), allocations = backend.allocations();
  CHECK(steps
            .TrainStep({bench.weights.begin(), bench.weights.end()}, {}, bench.batch, 5,
                       {bench.gradients.begin(), bench.gradients.end()}, {})
            .ok());
  CHECK(backend.uploads() ==
        uploads + 2);  // two uploads, of the image and the labels, because no weight has changed
  CHECK(backend.allocations() == allocations);
}

TEST_CASE("recordings of one HostStep are not replayed for the next HostStep of the same graph") {
  for (const bool apart : {false, true}) {
    const auto backend = apart ? OnApart::Make(1) : *MakeBackend(EmulatedGpu());
    INFO(backend->name());
    const auto graph = *Graph::Build(SmallCnnModel(), backend.get());
    BenchOn<OnCpu> bench(SmallCnnModel());
    bench.Fill(4);
    for (int round = 0; round < 3; ++round) {
      HostStep steps(graph.get(), backend.get());
      for (int step = 0; step < 5; ++step) {
        for (float& x : bench.inputs[0]) x *= 1.1f;
        bench.weights[2][0] += 0.1f;
        steps.Changed(2);
        const auto there =
            steps.TrainStep({bench.weights.begin(), bench.weights.end()}, {}, bench.batch, 5,
                            {bench.gradients.begin(), bench.gradients.end()}, {});
        INFO("round " << round << " step " << step << " " << there.status().ToString());
        REQUIRE(there.ok());
        CHECK(there->loss_sum == Approx(bench.Train()->loss_sum).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("weights whose copy was refused are copied by the next step, changed or not") {
  const std::string library = absl::StrCat(evergrad::test::BinDir(), "/libworker_cuda_emulated.so");
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  EmulatedControl& control =
      *reinterpret_cast<EmulatedControlEntry>(::dlsym(handle, "emulated_control"))();
  const auto backend = *MakeBackend({.device = "gpu", .cuda_library = library});
  const auto graph = *Graph::Build(SmallCnnModel(), backend.get());
  HostStep steps(graph.get(), backend.get());
  BenchOn<OnCpu> bench(SmallCnnModel());
  bench.Fill(4);
  const auto here = bench.Train();
  const auto train = [&] {
    return steps.TrainStep({bench.weights.begin(), bench.weights.end()}, {}, bench.batch, 5,
                           {bench.gradients.begin(), bench.gradients.end()}, {});
  };
  control.fail_kind = 4;  // EG_CUDA_NO_MEMORY
  control.fail_after_copies = 3;
  CHECK(train().status().code() == absl::StatusCode::kResourceExhausted);
  for (int step = 0; step < 5; ++step) {
    const auto there = train();
    REQUIRE(there.ok());
    CHECK(there->loss_sum == Approx(here->loss_sum).epsilon(1e-5));
  }
}

TEMPLATE_TEST_CASE("clipped probabilities and huge logits give Keras' values, never infinity", "",
                   OnCpu, OnApart, OnApartCompared) {
  using Bench = BenchOn<TestType>;
  config::ModelSpec model = Small();
  model.layers = {ActivationSpec("b", "x", "linear")};
  model.losses = {LossOf("sparse_categorical_crossentropy", "b")};
  Bench sparse(model);
  sparse.Fill(1);
  sparse.inputs[0] = {0.0f, 1.0f, 0.0f, 0.0f};
  sparse.batch.inputs = {sparse.inputs[0]};
  sparse.labels = {0};
  sparse.batch.labels = sparse.labels;
  // p_label is clipped to 1e-7. The sum of the clipped values is then 1 + 2e-7.
  CHECK(sparse.Evaluate()->loss_sum == Approx(-std::log(1e-7) + std::log1p(2e-7)).epsilon(1e-9));

  model.losses = {LossOf("sparse_categorical_crossentropy", "b", true)};
  Bench logits(model);
  logits.Fill(1);
  logits.inputs[0] = {1e4f, -1e4f, 0.0f, 5e3f};
  logits.batch.inputs = {logits.inputs[0]};
  logits.labels = {1};
  logits.batch.labels = logits.labels;
  CHECK(logits.Evaluate()->loss_sum == Approx(2e4));

  model.metrics.clear();
  model.losses = {LossOf("binary_crossentropy", "b")};
  Bench binary(model);
  binary.Fill(1);
  binary.inputs[0] = {0.0f, 1.0f, 0.0f, 1.0f};
  binary.labels = {1, 1, 0, 0};
  binary.batch.inputs = {binary.inputs[0]};
  binary.batch.labels = binary.labels;
  // Keras uses its epsilon() as the bound of the clipping, and also adds it. The loss of each of
  // the two wrong examples is -log(2e-7), and that of each right one is -log(1).
  CHECK(binary.Evaluate()->loss_sum == Approx(-2 * std::log(2e-7) / 4).epsilon(1e-6));
}

}  // namespace
}  // namespace evergrad::worker
