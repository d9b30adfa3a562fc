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

// The rounding errors that are tolerated. `loss` is relative. `length`, for 16 bits only, limits
// the length of the difference between the two gradients of a variable, relative to the gradient's
// length. An element may differ by the fraction `element` plus `absolute`.
struct Tolerance {
  double loss = 1e-5, length = 0, element = 2e-5, absolute = 2e-8;
};
constexpr Tolerance kNarrowTolerance = {2e-2, 2e-2, 0.1, 5e-4};

// Checks that the shape rules of common/layers give the shapes that the float64 forward pass has.
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

// A test model with random weights, rows and examples: in float32 for the graph, and in float64 for
// the reference. All numbers are first rounded to float32, so that both sides compute with the same
// numbers.
class GradientCheck {
 public:
  GradientCheck(const GradientCase& c, std::int64_t size, Graph* graph, const Tolerance& tolerance)
      : case_(c), graph_(*graph), tolerance_(tolerance) {
    batch_.size = batch32_.size = size;
    DrawWeights();
    DrawInputs();
    DrawLabels();
    DrawRows();
  }
  // Compares the results of a training step, and then those of an evaluation, in which dropout has
  // no effect.
  void Run(Backend& backend, float loss_scale) {
    HostStep steps(&graph_, &backend);
    graph_.SetLossScale(loss_scale);
    const auto step = steps.TrainStep(weight_spans_, rows_, batch32_, kDropoutKey, gradient_spans_,
                                      row_gradient_spans_);
    INFO(step.status().ToString());
    REQUIRE(step.ok());
    CHECK(step->finite);
    const ReferenceResult reference = Forward(true);
    CHECK(step->loss_sum == Approx(reference.loss_sum).epsilon(tolerance_.loss));
    CheckShapes(case_.model, reference);
    for (std::size_t v = 0; v < weights_.size(); ++v) {
      if (graph_.variables()[v].is_moving_average()) {
        CheckMovingAverage(v, reference);
      } else {
        CheckVariable(v);
      }
    }
    for (std::size_t t = 0; t < lookup_.size(); ++t) CheckRows(t);
    const auto evaluated = steps.Evaluate(weight_spans_, rows_, batch32_);
    REQUIRE(evaluated.ok());
    CHECK(evaluated->loss_sum == Approx(Forward(false).loss_sum).epsilon(tolerance_.loss));
  }

 private:
  static constexpr std::uint64_t kDropoutKey = 77;

  void DrawWeights() {
    for (const Variable& variable : graph_.variables()) {
      std::vector<float>& drawn = weights32_.emplace_back(
          Floats(Draw(random::KeyOf(1, variable.name), variable.shape.elements())));
      // A moving average must be above 0, because it may be a variance.
      if (variable.is_moving_average())
        for (float& v : drawn) v = std::abs(v) + 0.125f;
      weights_.emplace_back(drawn.begin(), drawn.end());
      gradients32_.emplace_back(drawn.size(), std::nanf(""));
    }
    weight_spans_.assign(weights32_.begin(), weights32_.end());
    gradient_spans_.assign(gradients32_.begin(), gradients32_.end());
  }
  void DrawInputs() {
    for (const config::InputSpec& input : case_.model.inputs) {
      std::size_t elements = static_cast<std::size_t>(batch_.size);
      for (const std::uint64_t d : input.shape) elements *= d;
      std::vector<float>& drawn =
          inputs32_.emplace_back(Floats(Draw(random::KeyOf(2, input.name), elements)));
      if (IsIds(inputs32_.size() - 1)) {
        // -4 to 3, so that many ids are duplicates and many are padding
        for (float& id : drawn) id = std::floor(4 * id);
      } else if (input.name == "w") {
        for (float& weight : drawn) weight += 1.5f;  // so that no sum of weights is near zero
      }
      batch_.inputs.emplace_back(drawn.begin(), drawn.end());
      ids_.emplace_back(drawn.begin(), drawn.end());
    }
    for (std::size_t i = 0; i < inputs32_.size(); ++i) {
      if (IsIds(i)) {
        batch32_.inputs.emplace_back(ids_[i]);
      } else {
        batch32_.inputs.emplace_back(inputs32_[i]);
      }
    }
  }
  bool IsIds(std::size_t i) const { return graph_.inputs()[i].dtype == tensor::DType::kInt64; }
  void DrawLabels() {
    labels32_.resize(static_cast<std::size_t>(batch_.size) * graph_.label_elements());
    for (std::size_t i = 0; i < labels32_.size(); ++i) {
      const float u = random::Uniform(3, i);
      labels32_[i] = case_.classes > 0 ? std::floor(u * static_cast<float>(case_.classes)) : u;
    }
    batch_.labels.assign(labels32_.begin(), labels32_.end());
    batch32_.labels = labels32_;
  }
  void DrawRows() {
    auto lookup = graph_.Lookup(batch32_);
    REQUIRE(lookup.ok());
    lookup_ = *std::move(lookup);
    rows_.lookup = &lookup_;
    for (std::size_t t = 0; t < lookup_.size(); ++t) {
      const config::TableSpec& table = graph_.tables()[t];
      const auto& ids = lookup_[t].ids;
      const std::vector<float>& drawn = rows32_.emplace_back(
          Floats(Draw(random::KeyOf(4, table.name), ids.size() * table.dimension)));
      row_gradients32_.emplace_back(drawn.size(), std::nanf(""));
      auto& rows = batch_.tables[table.name];
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto row = drawn.begin() + static_cast<std::ptrdiff_t>(i * table.dimension);
        rows[ids[i]] = {row, row + table.dimension};
      }
    }
    row_gradient_spans_.assign(row_gradients32_.begin(), row_gradients32_.end());
    rows_.values.assign(rows32_.begin(), rows32_.end());
  }

  ReferenceResult Forward(bool training) const {
    return ReferenceForward(case_.model, weights_, batch_, training, training ? kDropoutKey : 0);
  }
  // Returns the central difference of the loss at a weight or at an element of a row.
  double DifferenceAt(double* weight) const {
    constexpr double kStep = 1e-5;
    const double before = *weight;
    *weight = before + kStep;
    const double above = Forward(true).loss_sum;
    *weight = before - kStep;
    const double below = Forward(true).loss_sum;
    *weight = before;
    return (above - below) / (2 * kStep) / static_cast<double>(batch_.size);
  }
  void CheckMovingAverage(std::size_t v, const ReferenceResult& reference) const {
    const std::string& name = graph_.variables()[v].name;
    INFO(name);
    const std::vector<double>& want = reference.moving.at(name);
    REQUIRE(want.size() == weights_[v].size());
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(gradients32_[v][i] ==
            Approx(want[i]).epsilon(tolerance_.loss).margin(std::max(1e-6, tolerance_.length)));
  }
  void CheckVariable(std::size_t v) {
    double worst = 0, scale = 0, length = 0, difference = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < weights_[v].size(); ++i) {
      const double want = DifferenceAt(&weights_[v][i]);
      const double error = std::abs(want - gradients32_[v][i]);
      scale = std::max(scale, std::abs(want));
      if (!(error <= worst)) worst = error, at = i;
      length += want * want, difference += error * error;
    }
    INFO(graph_.variables()[v].name << " element " << at << " of " << weights_[v].size()
                                    << ", largest gradient " << scale);
    CHECK(worst <= tolerance_.element * scale + tolerance_.absolute);
    if (tolerance_.length > 0)
      CHECK(std::sqrt(difference) <= tolerance_.length * std::sqrt(length) + tolerance_.absolute);
  }
  void CheckRows(std::size_t t) {
    const config::TableSpec& table = graph_.tables()[t];
    const auto& ids = lookup_[t].ids;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::size_t d = 0; d < table.dimension; ++d) {
        INFO("table " << table.name << " id " << ids[i] << " element " << d);
        CHECK(row_gradients32_[t][i * table.dimension + d] ==
              Approx(DifferenceAt(&batch_.tables[table.name][ids[i]][d]))
                  .margin(std::max(1e-6, tolerance_.length))
                  .epsilon(tolerance_.element));
      }
    }
  }

  const GradientCase& case_;
  Graph& graph_;
  const Tolerance& tolerance_;
  std::vector<std::vector<double>> weights_;
  ReferenceBatch batch_;
  // The same numbers in the form that the graph needs, and the gradients of the graph. The spans
  // refer to the vectors.
  std::vector<std::vector<float>> weights32_, gradients32_, inputs32_, rows32_, row_gradients32_;
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<float> labels32_;
  std::vector<TableRows> lookup_;
  Batch batch32_;
  Rows rows_;
  std::vector<AnyIn> weight_spans_;
  std::vector<AnyOut> gradient_spans_, row_gradient_spans_;
};

void Check(const GradientCase& c, std::int64_t size, Backend& backend, Precision precision,
           float loss_scale, const Tolerance& tolerance) {
  INFO(c.name << ", batch " << size << ", on " << backend.name() << ", "
              << NameOf(ElementOf(precision)) << ", loss scale " << loss_scale);
  auto graph = Graph::Build(c.model, &backend, precision);
  INFO(graph.status().ToString());
  REQUIRE(graph.ok());
  GradientCheck(c, size, graph->get(), tolerance).Run(backend, loss_scale);
}

void Check(const GradientCase& c, std::int64_t size, Backend& backend,
           Precision precision = Precision::kFloat32, float loss_scale = 1) {
  Check(c, size, backend, precision, loss_scale,
        ElementOf(precision) == Element::kFloat32 ? Tolerance() : kNarrowTolerance);
}

#ifdef EG_CONTRACT_ON_GPU  // set in tests/unit/worker/backend/gpu

// Returns one backend that all models use, because opening a device is slow. It is null if there is
// no GPU.
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

// The case runs on every backend that supports 16 bits. The loss scale must not affect any result.
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

// The tolerance is that of float32, because no input, output or product of these layers is rounded
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
