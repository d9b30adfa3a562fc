// Compares the float32 gradients of every layer, loss and activation with central differences of a
// plain float64 forward pass.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <set>

#include "common/layers/activations.h"
#include "common/layers/layer_descriptor.h"
#include "common/layers/losses.h"
#include "common/layers/named.h"
#include "common/random/philox.h"
#include "tests/unit/worker/backend/fixtures/contract_fixture.h"
#include "tests/unit/worker/graph/reference_fixture.h"
#include "worker/graph/graph.h"
#include "worker/graph/host_step.h"

namespace evergrad::worker {
namespace {

using namespace test;

// Returns numbers in (-1, 1) that depend on the key and the position.
std::vector<double> Draw(std::uint64_t key, std::size_t n) {
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = 2.0 * random::Uniform(key, i) - 1.0;
  return values;
}
std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// The errors that rounding may cause: in the loss; in the length of a gradient's difference,
// relative to the variable's gradient (16 bits only); in an element; and absolute.
struct Tolerance {
  double loss = 1e-5, length = 0, element = 2e-5, absolute = 2e-8;
};
constexpr Tolerance kNarrowTolerance = {2e-2, 2e-2, 0.1, 5e-4};

// The shape rules of common/layers agree with the shapes of the float64 forward pass.
void CheckShapes(const config::ModelSpec& model, const ReferenceResult& reference) {
  for (const config::LayerSpec& layer : model.layers) {
    INFO(layer.name);
    config::LayerInputs inputs;
    for (const std::string& input : layer.inputs)
      inputs.shapes.emplace_back(reference.shapes.at(input));
    if (!layer.weights.empty()) inputs.weights = tensor::Shape(reference.shapes.at(layer.weights));
    for (const config::TableSpec& table : model.tables)
      if (table.name == layer.table) inputs.dimension = table.dimension;
    const auto inferred = config::InferLayer(layer, inputs);
    REQUIRE(inferred.ok());
    CHECK(inferred->output.dims() == reference.shapes.at(layer.name));
  }
}

void Check(const GradientCase& c, std::int64_t size, Backend& backend, Precision precision,
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
    // The numbers are rounded to float first, so that both sides compute with the same ones.
    weights32.push_back(Floats(Draw(random::KeyOf(1, variable.name), variable.shape.elements())));
    // One of them is a variance.
    if (variable.is_moving_average())
      for (float& v : weights32.back()) v = std::abs(v) + 0.125f;
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
      // -4 … 3: many twice, many padding.
      for (float& id : inputs32.back()) id = std::floor(4 * id);
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
  CheckShapes(c.model, reference);

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

void Check(const GradientCase& c, std::int64_t size, Backend& backend,
           Precision precision = Precision::kFloat32, float loss_scale = 1) {
  Check(c, size, backend, precision, loss_scale,
        ElementOf(precision) == Element::kFloat32 ? Tolerance() : kNarrowTolerance);
}

#ifdef EG_CONTRACT_ON_GPU  // tests/unit/worker/backend/gpu

// One backend serves all models, because opening a device is slow. It is null if there is none.
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
  for (const GradientCase& c : GradientCases()) {
    for (const std::int64_t size : {5, 1})
      if (gpu != nullptr) Check(c, size, *gpu);
  }
}

TEST_CASE(
    "gradients of whole models in mixed precision equal central differences up to rounding, for "
    "any loss scale") {
  const auto gpu = Gpu();
  for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
    if (gpu == nullptr || !gpu->CheckPrecision(precision).ok()) continue;
    for (GradientCase c : GradientCases()) {
      for (const float scale : {1.0f, 1024.0f}) Check(c, 5, *gpu, precision, scale);
      for (config::LayerSpec& layer : c.model.layers)
        layer.dtype = layer.type == "flatten" ? "" : "float32";
      Check(c, 5, *gpu, precision, 1, Tolerance());
    }
  }
}

#else

TEST_CASE("every layer type, activation and loss of common/layers has a gradient case") {
  std::set<std::string> layers, activations, losses;
  for (const GradientCase& c : GradientCases()) {
    for (const config::LayerSpec& layer : c.model.layers)
      layers.insert(layer.type), activations.insert(layer.activation);
    for (const config::LossSpec& loss : c.model.losses) losses.insert(loss.type);
  }
  const auto check = [](const std::vector<std::string>& names, const std::set<std::string>& have) {
    for (const std::string& name : names) {
      INFO("GradientCases() has no model with `" << name << "`");
      CHECK(have.count(name) == 1);
    }
  };
  check(config::LayerTypes(), layers);
  check(config::NamesOf(config::Activations(), true), activations);
  check(config::NamesOf(config::Losses(), true), losses);
}

TEST_CASE("gradients equal central differences of a float64 forward pass") {
  for (const GradientCase& c : GradientCases()) {
    for (const std::int64_t size : {5, 1}) Check(c, size, **MakeBackend({"cpu", 1}));
  }
}

TEST_CASE("gradients equal central differences on two threads") {
  for (const GradientCase& c : GradientCases()) Check(c, 3, **MakeBackend({"cpu", 2}));
}

TEST_CASE("gradients equal central differences if the host cannot read intermediate values") {
  for (const GradientCase& c : GradientCases())
    Check(c, 4, *std::make_unique<ApartBackend>(ApartOptions()));
}

TEST_CASE(
    "gradients equal central differences by the GPU's backend and kernels on an emulated device") {
  for (const GradientCase& c : GradientCases()) Check(c, 4, **MakeBackend(EmulatedGpu()));
}

// Runs on every backend with 16 bits. The loss scale must not affect any result.
TEST_CASE(
    "gradients in mixed precision equal central differences up to rounding, for any loss scale") {
  const std::vector<std::function<std::unique_ptr<Backend>()>> backends = {
      [] {
        return *MakeBackend({"cpu", 1});
      },
      []() -> std::unique_ptr<Backend> { return std::make_unique<ApartBackend>(ApartOptions()); },
      [] { return *MakeBackend(EmulatedGpu()); }};
  for (const auto& make : backends) {
    for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
      if (!make()->CheckPrecision(precision).ok()) continue;
      for (const GradientCase& c : GradientCases()) {
        Check(c, 5, *make(), precision);
        Check(c, 5, *make(), precision, 1024);
      }
    }
  }
}

// The tolerance is that of float32, because no input, output or product of these layers was rounded
// to 16 bits.
TEST_CASE("layers of dtype float32 compute in float32 in mixed precision, too") {
  const std::vector<std::function<std::unique_ptr<Backend>()>> backends = {
      [] {
        return *MakeBackend({"cpu", 1});
      },
      [] { return *MakeBackend(EmulatedGpu()); }};
  for (const auto& make : backends) {
    for (const Precision precision : {Precision::kMixedBFloat16, Precision::kMixedFloat16}) {
      if (!make()->CheckPrecision(precision).ok()) continue;
      for (GradientCase c : GradientCases()) {
        for (config::LayerSpec& layer : c.model.layers)
          layer.dtype = layer.type == "flatten" ? "" : "float32";
        Check(c, 4, *make(), precision, 1, Tolerance());
      }
    }
  }
}

TEST_CASE("the loss scale is absent from all float32 gradients") {
  for (const GradientCase& c : GradientCases())
    Check(c, 4, **MakeBackend({"cpu", 1}), Precision::kFloat32, 32768);
}

#endif

}  // namespace
}  // namespace evergrad::worker
