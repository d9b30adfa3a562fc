// The float32 gradients of every layer, loss and activation against central differences of a plain
// float64 forward.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "common/random/philox.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "tests/unit/worker/graph/reference_fixture.h"
#include "worker/graph/graph.h"
#include "worker/graph/host_step.h"

namespace evergrad::worker {
namespace {

using namespace test;

struct Case {
  std::string name;
  config::ModelSpec model;
  std::int64_t classes = 0;  // labels are 0..classes-1; 0: real targets in (0, 1)
};

config::ModelSpec Model(std::vector<config::InputSpec> inputs,
                        std::vector<config::LayerSpec> layers,
                        std::vector<config::LossSpec> losses) {
  config::ModelSpec model;
  model.inputs = std::move(inputs), model.layers = std::move(layers),
  model.losses = std::move(losses);
  return model;
}

config::LayerSpec WithoutBias(config::LayerSpec spec) {
  spec.use_bias = false;
  return spec;
}

std::vector<Case> Cases() {
  const auto sparse = [](const char* output) {
    return LossOf("sparse_categorical_crossentropy", output, true);
  };
  std::vector<Case> cases;
  cases.push_back(
      {"mlp of odd sizes, relu",
       Model({{"x", {7}}}, {DenseSpec("a", "x", 5, "relu"), DenseSpec("b", "a", 3)}, {sparse("b")}),
       3});
  cases.push_back(
      {"softmax and probabilities",
       Model({{"x", {6}}}, {DenseSpec("a", "x", 5, "tanh"), DenseSpec("b", "a", 4, "softmax")},
             {LossOf("sparse_categorical_crossentropy", "b")}),
       4});
  cases.push_back(
      {"sigmoid and binary",
       Model({{"x", {5}}}, {DenseSpec("a", "x", 3, "sigmoid"), DenseSpec("b", "a", 1, "sigmoid")},
             {LossOf("binary_crossentropy", "b")}),
       2});
  cases.push_back(
      {"binary from logits, soft targets, three outputs",
       Model({{"x", {5}}}, {DenseSpec("a", "x", 3)}, {LossOf("binary_crossentropy", "a", true)}),
       0});
  cases.push_back({"mean squared error, no bias",
                   Model({{"x", {4}}}, {WithoutBias(DenseSpec("a", "x", 3))},
                         {LossOf("mean_squared_error", "a")}),
                   0});
  cases.push_back({"conv valid, pool, flatten",
                   Model({{"x", {9, 7, 2}}},
                         {Conv2dSpec("c", "x", 3, 3, 2, 1, 1, "valid", "relu"),
                          MaxPooling2dSpec("p", "c", 2, 2, 2, 2), FlattenSpec("f", "p"),
                          DenseSpec("d", "f", 4)},
                         {sparse("d")}),
                   4});
  cases.push_back({"conv same with strides, asymmetric padding, overlapping pool same",
                   Model({{"x", {6, 7, 3}}},
                         {Conv2dSpec("c", "x", 5, 3, 2, 2, 1, "same", "tanh"),
                          MaxPooling2dSpec("p", "c", 3, 3, 2, 2, "same"), FlattenSpec("f", "p"),
                          DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"two convs, the second through the first, even kernel same",
                   Model({{"x", {5, 6, 1}}},
                         {Conv2dSpec("c1", "x", 4, 2, 2, 1, 1, "same", "sigmoid"),
                          WithoutBias(Conv2dSpec("c2", "c1", 3, 4, 4, 3, 2, "same")),
                          FlattenSpec("f", "c2"), DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"conv 1x1 with stride larger than kernel, softmax over channels",
                   Model({{"x", {5, 5, 3}}},
                         {Conv2dSpec("c", "x", 4, 1, 1, 2, 3, "valid", "softmax"),
                          FlattenSpec("f", "c"), DenseSpec("d", "f", 2)},
                         {LossOf("mean_squared_error", "d")}),
                   0});
  cases.push_back({"pool with gaps between windows, 17 channels",
                   Model({{"x", {7, 8, 1}}},
                         {Conv2dSpec("c", "x", 17, 2, 3), MaxPooling2dSpec("p", "c", 2, 1, 3, 2),
                          FlattenSpec("f", "p"), DenseSpec("d", "f", 3)},
                         {sparse("d")}),
                   3});
  cases.push_back({"dense over the last axis, one label a position",
                   Model({{"x", {2, 3, 4}}},
                         {DenseSpec("a", "x", 5, "relu"), DenseSpec("b", "a", 3)}, {sparse("b")}),
                   3});
  cases.push_back({"activation layers",
                   Model({{"x", {6}}},
                         {DenseSpec("a", "x", 5), ActivationSpec("t", "a", "tanh"),
                          DenseSpec("b", "t", 4), ActivationSpec("r", "b", "relu"),
                          DenseSpec("c", "r", 4), ActivationSpec("g", "c", "sigmoid"),
                          ActivationSpec("l", "g", "linear"), ActivationSpec("s", "l", "softmax")},
                         {LossOf("sparse_categorical_crossentropy", "s")}),
                   4});
  cases.push_back({"dropout between and before variables",
                   Model({{"x", {9}}},
                         {DropoutSpec("e", "x", 0.2), DenseSpec("a", "e", 8, "tanh"),
                          DropoutSpec("o", "a", 0.5), DenseSpec("b", "o", 3)},
                         {sparse("b")}),
                   3});
  cases.push_back(
      {"fan-out: a trunk feeds two heads, a view and its source are both used",
       Model(
           {{"x", {6, 6, 2}}},
           {Conv2dSpec("trunk", "x", 3, 3, 3, 1, 1, "valid", "tanh"), FlattenSpec("flat", "trunk"),
            DenseSpec("head1", "flat", 3), MaxPooling2dSpec("pool", "trunk", 2, 2, 2, 2),
            FlattenSpec("flat2", "pool"), DenseSpec("mid", "flat2", 4, "sigmoid"),
            DenseSpec("head2", "mid", 3), DenseSpec("head3", "mid", 3, "softmax")},
           {sparse("head1"), sparse("head2"), LossOf("sparse_categorical_crossentropy", "head3")}),
       3});
  const auto wide = [](config::LayerSpec spec) {
    spec.dtype = "float32";
    return spec;
  };
  cases.push_back(
      {"layers of float32 between, before and beside others",
       Model({{"x", {6, 6, 2}}},
             {wide(Conv2dSpec("trunk", "x", 4, 3, 3, 1, 1, "valid", "tanh")),
              Conv2dSpec("narrow", "trunk", 4, 3, 3, 1, 1, "same", "tanh"),
              wide(Conv2dSpec("wide", "narrow", 4, 1, 1, 1, 1, "same", "sigmoid")),
              wide(MergeSpec("sum", "add", {"narrow", "wide", "trunk"})),
              MaxPooling2dSpec("pool", "sum", 2, 2, 2, 2), FlattenSpec("flat", "pool"),
              wide(DenseSpec("mid", "flat", 4, "sigmoid")), wide(DenseSpec("head", "mid", 3))},
             {sparse("head")}),
       3});
  cases.push_back({"two inputs, one head each",
                   Model({{"x", {3}}, {"z", {4}}}, {DenseSpec("a", "x", 3), DenseSpec("b", "z", 3)},
                         {sparse("a"), sparse("b")}),
                   3});
  cases.push_back({"two losses on one output",
                   Model({{"x", {3}}}, {DenseSpec("a", "x", 2, "sigmoid")},
                         {LossOf("mean_squared_error", "a"), LossOf("binary_crossentropy", "a")}),
                   0});
  const auto with_tables = [](std::vector<config::TableSpec> tables, config::ModelSpec model) {
    model.tables = std::move(tables);
    return model;
  };
  const auto regular = [](config::LayerSpec spec) {
    spec.kernel_l2 = 0.03, spec.bias_l2 = 0.5;
    return spec;
  };
  cases.push_back(
      {"l2 of kernels and biases",
       Model({{"x", {3}}}, {regular(DenseSpec("a", "x", 4, "tanh")), DenseSpec("b", "a", 2)},
             {sparse("b")}),
       2});
  // What only shifts the input of a batch normalization has no gradient: nothing to compare with.
  config::LayerSpec without_beta = PlainSpec("n", "batch_normalization", "x");
  without_beta.center = false, without_beta.gamma_l2 = 0.1;
  cases.push_back({"batch normalization of vectors, first and in the middle",
                   Model({{"x", {4}}},
                         {without_beta, WithoutBias(DenseSpec("a", "n", 5)),
                          PlainSpec("m", "batch_normalization", "a"),
                          ActivationSpec("r", "m", "tanh"), DenseSpec("b", "r", 3)},
                         {sparse("b")}),
                   3});
  config::LayerSpec bare = PlainSpec("m", "batch_normalization", "c2");
  bare.center = bare.scale = false;
  bare.epsilon = 0.2;
  cases.push_back(
      {"batch normalization of images between convolutions, without gamma and beta; global average "
       "pooling",
       Model({{"x", {5, 4, 2}}},
             {WithoutBias(Conv2dSpec("c", "x", 3, 3, 3, 1, 1, "same")),
              PlainSpec("n", "batch_normalization", "c"), ActivationSpec("r", "n", "tanh"),
              WithoutBias(Conv2dSpec("c2", "r", 3, 1, 1)), bare, MergeSpec("s", "add", {"m", "r"}),
              PlainSpec("g", "global_average_pooling2d", "s"), DenseSpec("d", "g", 3)},
             {sparse("d")}),
       3});
  config::LayerSpec only_gamma = PlainSpec("n", "layer_normalization", "a"),
                    only_beta = PlainSpec("o", "layer_normalization", "t");
  only_gamma.center = false, only_gamma.gamma_l2 = 0.2;
  only_beta.scale = false, only_beta.beta_l2 = 0.3, only_beta.epsilon = 0.05;
  cases.push_back({"layer normalization over the last axis, each part alone",
                   Model({{"x", {2, 4}}},
                         {DenseSpec("a", "x", 5), only_gamma, ActivationSpec("t", "n", "tanh"),
                          only_beta, DenseSpec("b", "o", 4),
                          PlainSpec("p", "layer_normalization", "b"), DenseSpec("c", "p", 2)},
                         {sparse("c")}),
                   2});
  cases.push_back(
      {"concatenate, add and dot of layers and inputs, one of them twice",
       Model({{"x", {4}}, {"z", {3}}},
             {DenseSpec("a", "x", 3, "tanh"), DenseSpec("b", "z", 3),
              MergeSpec("sum", "add", {"a", "b", "a"}), MergeSpec("dot", "dot", {"a", "sum"}),
              MergeSpec("all", "concatenate", {"sum", "dot", "z", "b"}), DenseSpec("c", "all", 3)},
             {sparse("c")}),
       3});
  cases.push_back({"concatenate along the last of two axes, and of a view",
                   Model({{"x", {2, 3}}},
                         {DenseSpec("a", "x", 4, "tanh"), DenseSpec("b", "x", 2),
                          MergeSpec("ab", "concatenate", {"a", "b"}), FlattenSpec("f", "ab"),
                          FlattenSpec("g", "a"), MergeSpec("fg", "concatenate", {"f", "g"}),
                          DenseSpec("c", "fg", 2)},
                         {sparse("c")}),
                   2});
  config::LayerSpec cosine = MergeSpec("cosine", "dot", {"a", "b"});
  cosine.normalize = true;
  cases.push_back(
      {"dot of unit vectors",
       Model({{"x", {4}}}, {DenseSpec("a", "x", 3), DenseSpec("b", "x", 3, "tanh"), cosine},
             {LossOf("mean_squared_error", "cosine")}),
       0});
  cases.push_back(
      {"factorization machine over a list of vectors and a matrix",
       Model({{"x", {4}}, {"z", {2, 3}}},
             {DenseSpec("a", "x", 5, "tanh"), DenseSpec("m", "z", 5), DenseSpec("b", "x", 5),
              MergeSpec("fm", "factorization_machine", {"a", "m", "b"})},
             {LossOf("binary_crossentropy", "fm", true)}),
       2});
  cases.push_back(
      {"embeddings: matrix factorization with biases and l2",
       with_tables(
           {TableOf("users", 4, 0.05), TableOf("movies", 4), TableOf("biases", 1, 0.3)},
           Model({{"user", {}}, {"movie", {}}},
                 {EmbeddingSpec("u", "users", {"user"}), EmbeddingSpec("m", "movies", {"movie"}),
                  EmbeddingSpec("ub", "biases", {"user"}), EmbeddingSpec("mb", "biases", {"movie"}),
                  MergeSpec("um", "dot", {"u", "m"}), MergeSpec("s", "add", {"um", "ub", "mb"})},
                 {LossOf("mean_squared_error", "s")})),
       0});
  cases.push_back({"embeddings: DeepFM, one table read by two layers of other shapes",
                   with_tables({TableOf("factors", 3, 0.01), TableOf("weights", 1)},
                               Model({{"f", {5}}, {"more", {2}}},
                                     {EmbeddingSpec("linear", "weights", {"f", "more"}, "sum"),
                                      EmbeddingSpec("v", "factors", {"f"}),
                                      EmbeddingSpec("w", "factors", {"more", "f"}),
                                      MergeSpec("fm", "factorization_machine", {"v", "w"}),
                                      FlattenSpec("flat", "w"), DenseSpec("h", "flat", 4, "tanh"),
                                      DenseSpec("deep", "h", 1),
                                      MergeSpec("logit", "add", {"linear", "fm", "deep"})},
                                     {LossOf("binary_crossentropy", "logit", true)})),
                   2});
  for (const char* combiner : {"sum", "mean", "sqrtn"}) {
    cases.push_back({std::string("embeddings: bags with and without weights, ") + combiner,
                     with_tables({TableOf("t", 3)},
                                 Model({{"ids", {4}}, {"w", {4}}},
                                       {EmbeddingSpec("plain", "t", {"ids"}, combiner),
                                        EmbeddingSpec("weighted", "t", {"ids"}, combiner, "w"),
                                        MergeSpec("both", "concatenate", {"plain", "weighted"}),
                                        DenseSpec("d", "both", 2)},
                                       {sparse("d")})),
                     2});
  }
  return cases;
}

// Numbers in (-1, 1), a function of the key and the position.
std::vector<double> Draw(std::uint64_t key, std::size_t n) {
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = 2.0 * random::Uniform(key, i) - 1.0;
  return values;
}
std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// What rounding may cost: of a loss, of a gradient relative to the variable's (the length of the
// difference, of 16 bits), of an element, and absolute.
struct Tolerance {
  double loss = 1e-5, length = 0, element = 2e-5, absolute = 2e-8;
};
constexpr Tolerance kNarrowTolerance = {2e-2, 2e-2, 0.1, 5e-4};

void Check(const Case& c, std::int64_t size, Backend& backend, Precision precision,
           float loss_scale, const Tolerance& tolerance) {
  INFO(c.name << ", batch " << size << ", on " << backend.name() << ", "
              << NameOf(ElementOf(precision)) << ", loss scale " << loss_scale);
  auto graph = Graph::Build(c.model, &backend, precision);
  INFO(graph.status().ToString());
  REQUIRE(graph.ok());
  constexpr std::uint64_t kDropoutKey = 77;

  std::vector<std::vector<double>> weights;
  std::vector<std::vector<float>> weights32, gradients32;
  std::vector<AnyIn> weight_spans;
  std::vector<AnyOut> gradient_spans;
  for (const Variable& variable : (*graph)->variables()) {
    // Rounded to float first, so that both sides compute on the same numbers.
    weights32.push_back(Floats(Draw(random::KeyOf(1, variable.name), variable.shape.elements())));
    if (variable.is_moving_average())
      for (float& v : weights32.back()) v = std::abs(v) + 0.125f;  // a variance, too
    weights.emplace_back(weights32.back().begin(), weights32.back().end());
    gradients32.emplace_back(variable.shape.elements(), std::nanf(""));
  }
  for (std::size_t v = 0; v < weights32.size(); ++v) {
    weight_spans.emplace_back(weights32[v]);
    gradient_spans.emplace_back(gradients32[v]);
  }
  ReferenceBatch batch;
  batch.size = size;
  std::vector<std::vector<float>> inputs32;
  for (const config::InputSpec& input : c.model.inputs) {
    std::size_t elements = static_cast<std::size_t>(size);
    for (const std::uint64_t d : input.shape) elements *= d;
    inputs32.push_back(Floats(Draw(random::KeyOf(2, input.name), elements)));
    if ((*graph)->inputs()[inputs32.size() - 1].dtype == tensor::DType::kInt64) {
      for (float& id : inputs32.back())
        id = std::floor(4 * id);  // -4 … 3: many twice, many padding
    } else if (input.name == "w") {
      for (float& weight : inputs32.back()) weight += 1.5f;  // no sum of weights near zero
    }
    batch.inputs.emplace_back(inputs32.back().begin(), inputs32.back().end());
  }
  std::vector<float> labels32(static_cast<std::size_t>(size) * (*graph)->label_elements());
  for (std::size_t i = 0; i < labels32.size(); ++i) {
    const float u = random::Uniform(3, i);
    labels32[i] = c.classes > 0 ? std::floor(u * static_cast<float>(c.classes)) : u;
  }
  batch.labels.assign(labels32.begin(), labels32.end());
  Batch batch32;
  batch32.size = size;
  std::vector<std::vector<std::int64_t>> ids(inputs32.size());
  for (std::size_t i = 0; i < inputs32.size(); ++i) {
    ids[i].assign(inputs32[i].begin(), inputs32[i].end());
    if ((*graph)->inputs()[i].dtype == tensor::DType::kInt64)
      batch32.inputs.emplace_back(ids[i]);
    else
      batch32.inputs.emplace_back(inputs32[i]);
  }
  batch32.labels = labels32;
  const auto lookup = (*graph)->Lookup(batch32);
  REQUIRE(lookup.ok());
  Rows rows;
  rows.lookup = &*lookup;
  std::vector<std::vector<float>> rows32, row_gradients32;
  for (std::size_t t = 0; t < lookup->size(); ++t) {
    const config::TableSpec& table = (*graph)->tables()[t];
    rows32.push_back(
        Floats(Draw(random::KeyOf(4, table.name), (*lookup)[t].ids.size() * table.dimension)));
    row_gradients32.emplace_back(rows32.back().size(), std::nanf(""));
    for (std::size_t i = 0; i < (*lookup)[t].ids.size(); ++i) {
      const auto row = rows32.back().begin() + static_cast<std::ptrdiff_t>(i * table.dimension);
      batch.tables[table.name][(*lookup)[t].ids[i]] = {row, row + table.dimension};
    }
    batch.tables[table.name];
  }
  std::vector<AnyOut> row_gradient_spans(row_gradients32.begin(), row_gradients32.end());
  rows.values.assign(rows32.begin(), rows32.end());

  HostStep steps(graph->get(), &backend);
  (*graph)->SetLossScale(loss_scale);
  const auto step =
      steps.TrainStep(weight_spans, rows, batch32, kDropoutKey, gradient_spans, row_gradient_spans);
  INFO(step.status().ToString());
  REQUIRE(step.ok());
  CHECK(step->finite);
  const ReferenceResult reference = ReferenceForward(c.model, weights, batch, true, kDropoutKey);
  CHECK(step->loss_sum == Approx(reference.loss_sum).epsilon(tolerance.loss));

  for (std::size_t v = 0; v < weights.size(); ++v) {
    double worst = 0, scale = 0, length = 0, difference = 0;
    std::size_t at = 0;
    if (const Variable& variable = (*graph)->variables()[v]; variable.is_moving_average()) {
      INFO(variable.name);
      const std::vector<double>& want = reference.moving.at(variable.name);
      REQUIRE(want.size() == weights[v].size());
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(gradients32[v][i] ==
              Approx(want[i]).epsilon(tolerance.loss).margin(std::max(1e-6, tolerance.length)));
      continue;
    }
    for (std::size_t i = 0; i < weights[v].size(); ++i) {
      constexpr double kStep = 1e-5;
      const double weight = weights[v][i];
      weights[v][i] = weight + kStep;
      const double above = ReferenceForward(c.model, weights, batch, true, kDropoutKey).loss_sum;
      weights[v][i] = weight - kStep;
      const double below = ReferenceForward(c.model, weights, batch, true, kDropoutKey).loss_sum;
      weights[v][i] = weight;
      const double want = (above - below) / (2 * kStep) / static_cast<double>(size);
      const double error = std::abs(want - gradients32[v][i]);
      scale = std::max(scale, std::abs(want));
      if (!(error <= worst)) worst = error, at = i;
      length += want * want, difference += error * error;
    }
    INFO((*graph)->variables()[v].name << " element " << at << " of " << weights[v].size()
                                       << ", largest gradient " << scale);
    CHECK(worst <= tolerance.element * scale + tolerance.absolute);
    if (tolerance.length > 0)
      CHECK(std::sqrt(difference) <= tolerance.length * std::sqrt(length) + tolerance.absolute);
  }

  for (std::size_t t = 0; t < lookup->size(); ++t) {
    const config::TableSpec& table = (*graph)->tables()[t];
    for (std::size_t i = 0; i < (*lookup)[t].ids.size(); ++i) {
      for (std::size_t d = 0; d < table.dimension; ++d) {
        constexpr double kStep = 1e-5;
        double& weight = batch.tables[table.name][(*lookup)[t].ids[i]][d];
        const double before = weight;
        weight = before + kStep;
        const double above = ReferenceForward(c.model, weights, batch, true, kDropoutKey).loss_sum;
        weight = before - kStep;
        const double below = ReferenceForward(c.model, weights, batch, true, kDropoutKey).loss_sum;
        weight = before;
        INFO("table " << table.name << " id " << (*lookup)[t].ids[i] << " element " << d);
        CHECK(row_gradients32[t][i * table.dimension + d] ==
              Approx((above - below) / (2 * kStep) / static_cast<double>(size))
                  .margin(std::max(1e-6, tolerance.length))
                  .epsilon(tolerance.element));
      }
    }
  }

  // Evaluation: no dropout, and a batch smaller than the buffers.
  const auto evaluated = steps.Evaluate(weight_spans, rows, batch32);
  REQUIRE(evaluated.ok());
  CHECK(
      evaluated->loss_sum ==
      Approx(ReferenceForward(c.model, weights, batch, false, 0).loss_sum).epsilon(tolerance.loss));
}

void Check(const Case& c, std::int64_t size, Backend& backend,
           Precision precision = Precision::kFloat32, float loss_scale = 1) {
  Check(c, size, backend, precision, loss_scale,
        ElementOf(precision) == Element::kFloat32 ? Tolerance() : kNarrowTolerance);
}

#ifdef EG_CONTRACT_ON_GPU  // tests/unit/worker/backend/gpu

// One for all models: to open a device takes its time. Null: there is none.
std::unique_ptr<Backend> Gpu() {
  if (const auto choice = ChooseDevice("gpu", ""); !choice.ok()) {
    std::printf("\nskipped: no GPU: %s\n", std::string(choice.status().message()).c_str());
    return nullptr;
  }
  auto gpu = MakeBackend({"gpu", 1});
  INFO(gpu.status().ToString());
  REQUIRE(gpu.ok());
  return *std::move(gpu);
}

TEST_CASE("gradients of whole models equal central differences") {
  const auto gpu = Gpu();
  for (const Case& c : Cases()) {
    for (const std::int64_t size : {5, 1})
      if (gpu != nullptr) Check(c, size, *gpu);
  }
}

TEST_CASE(
    "gradients of whole models in mixed precision equal central differences but for rounding, "
    "whatever the losses are scaled by") {
  const auto gpu = Gpu();
  for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
    if (gpu == nullptr || !gpu->CheckPrecision(precision).ok()) continue;
    for (Case c : Cases()) {
      for (const float scale : {1.0f, 1024.0f}) Check(c, 5, *gpu, precision, scale);
      for (config::LayerSpec& layer : c.model.layers)
        layer.dtype = layer.type == "flatten" ? "" : "float32";
      Check(c, 5, *gpu, precision, 1, Tolerance());
    }
  }
}

#else

TEST_CASE("gradients equal central differences of a float64 forward") {
  for (const Case& c : Cases()) {
    for (const std::int64_t size : {5, 1}) Check(c, size, **MakeBackend({"cpu", 1}));
  }
}

TEST_CASE("gradients equal central differences on two threads") {
  for (const Case& c : Cases()) Check(c, 3, **MakeBackend({"cpu", 2}));
}

TEST_CASE("gradients equal central differences where the host cannot look at what is computed") {
  for (const Case& c : Cases()) Check(c, 4, *std::make_unique<ApartBackend>(ApartOptions()));
}

TEST_CASE(
    "gradients equal central differences by the GPU's backend and kernels on an emulated device") {
  for (const Case& c : Cases()) Check(c, 4, **MakeBackend(EmulatedGpu()));
}

// On every backend that has them. A scale of the losses is in no result.
TEST_CASE(
    "gradients in mixed precision equal central differences but for rounding, whatever the losses "
    "are scaled by") {
  const std::vector<std::function<std::unique_ptr<Backend>()>> backends = {
      [] {
        return *MakeBackend({"cpu", 1});
      },
      []() -> std::unique_ptr<Backend> { return std::make_unique<ApartBackend>(ApartOptions()); },
      [] { return *MakeBackend(EmulatedGpu()); }};
  for (const auto& make : backends) {
    for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
      if (!make()->CheckPrecision(precision).ok()) continue;
      for (const Case& c : Cases()) {
        Check(c, 5, *make(), precision);
        Check(c, 5, *make(), precision, 1024);
      }
    }
  }
}

// As close as in float32: nothing that they read, give or multiply was rounded to 16 bits.
TEST_CASE("layers of dtype float32 compute in float32 in mixed precision, too") {
  const std::vector<std::function<std::unique_ptr<Backend>()>> backends = {
      [] {
        return *MakeBackend({"cpu", 1});
      },
      [] { return *MakeBackend(EmulatedGpu()); }};
  for (const auto& make : backends) {
    for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
      if (!make()->CheckPrecision(precision).ok()) continue;
      for (Case c : Cases()) {
        for (config::LayerSpec& layer : c.model.layers)
          layer.dtype = layer.type == "flatten" ? "" : "float32";
        Check(c, 4, *make(), precision, 1, Tolerance());
      }
    }
  }
}

TEST_CASE("a scale of the losses is in no float32 gradient") {
  for (const Case& c : Cases()) Check(c, 4, **MakeBackend({"cpu", 1}), Precision::kFloat32, 32768);
}

#endif

}  // namespace
}  // namespace evergrad::worker
