// Tests that configs/examples/resnet50.yaml is the same model as Keras' ResNet50. It compares the
// shapes and the number of parameters, which it both counts and computes from the layers. It also
// runs one step on the CPU.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

#include "common/config/job_spec.h"
#include "common/random/philox.h"
#include "tests/support/paths.h"
#include "worker/graph/graph.h"

namespace evergrad::worker {
namespace {

config::ModelSpec Resnet50() {
  std::ifstream file(evergrad::test::SourceDir() + "/configs/examples/resnet50.yaml");
  std::stringstream text;
  text << file.rdbuf();
  config::ParsedJob parsed = config::ParseJob(text.str(), {});
  for (const auto& mistake : parsed.mistakes) UNSCOPED_INFO(mistake.ToString());
  REQUIRE(parsed.spec.has_value());
  return parsed.spec->model;
}

// Returns the number of trained values of a convolution with a bias and of the batch normalization
// after it.
std::uint64_t Trained(std::uint64_t kernel, std::uint64_t in, std::uint64_t out) {
  return kernel * kernel * in * out + out + 2 * out;
}

TEST_CASE("resnet50.yaml has the parameters and shapes of Keras' ResNet50") {
  const auto backend = *MakeBackend({"cpu", 1});
  const auto graph = *Graph::Build(Resnet50(), backend.get());
  std::uint64_t all = 0, trained = 0;
  for (const Variable& variable : graph->variables()) {
    all += variable.shape.elements();
    if (!variable.is_moving_average()) trained += variable.shape.elements();
  }
  std::uint64_t want = Trained(7, 3, 64), in = 64, normalized = 64;
  const std::uint64_t blocks[] = {3, 4, 6, 3};
  for (std::uint64_t stage = 0; stage < 4; ++stage) {
    const std::uint64_t filters = 64u << stage;
    for (std::uint64_t block = 0; block < blocks[stage]; ++block, in = 4 * filters) {
      if (block == 0) want += Trained(1, in, 4 * filters), normalized += 4 * filters;
      want +=
          Trained(1, in, filters) + Trained(3, filters, filters) + Trained(1, filters, 4 * filters);
      normalized += 6 * filters;
    }
  }
  want += 2048 * 1000 + 1000;
  CHECK(want == 25583592);
  CHECK(trained == want);
  CHECK(all == want + 2 * normalized);
  CHECK(all == 25636712);
  const std::string summary = graph->Summary();
  for (const char* line : {"(None, 112, 112, 64)", "(None, 56, 56, 256)", "(None, 28, 28, 512)",
                           "(None, 14, 14, 1024)", "(None, 7, 7, 2048)", "(None, 1000)"})
    CHECK(summary.find(line) != std::string::npos);
  CHECK(graph->inputs()[0].shape.ToString() == tensor::Shape({224, 224, 3}).ToString());
}

TEST_CASE(
    "a training step of resnet50.yaml on small images has the loss of random guesses, and a "
    "gradient for every variable") {
  const auto backend = *MakeBackend({"cpu", 1});
  config::ModelSpec model = Resnet50();
  model.inputs[0].shape = {64, 64, 3};  // smaller than 224 x 224, which would take seconds
  const auto graph = *Graph::Build(model, backend.get());
  std::vector<std::vector<float>> weights, gradients;
  for (const Variable& variable : graph->variables()) {
    std::vector<float>& values = weights.emplace_back(variable.shape.elements());
    gradients.emplace_back(values.size());
    const bool ones = variable.name.ends_with("/gamma") || variable.name.ends_with("variance");
    const float he = std::sqrt(6.0f / static_cast<float>(std::max<std::uint64_t>(
                                          // uniform numbers with He's variance
                                          variable.fan_in, 1)));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = ones ? 1.0f
                  : variable.name.ends_with("/kernel")
                      ? he * (2 * random::Uniform(random::KeyOf(3, variable.name), i) - 1)
                      : 0.0f;
  }
  for (float& x : weights[weights.size() - 2]) x *= 0.1f;  // so that the logits are near zero
  std::vector<float> image(2 * 64 * 64 * 3);
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = random::Uniform(5, i);
  const std::vector<float> labels = {7, 999};
  Batch batch;
  batch.size = 2;
  batch.inputs = {image};
  batch.labels = labels;
  const auto result = graph->TrainStep({weights.begin(), weights.end()}, batch, 1,
                                       {gradients.begin(), gradients.end()});
  REQUIRE(result.ok());
  CHECK(result->finite);
  CHECK(result->loss_sum / 2 == Approx(std::log(1000.0)).epsilon(0.15));
  for (std::size_t v = 0; v < gradients.size(); ++v) {
    INFO(graph->variables()[v].name);
    // A bias in front of a batch normalization has no effect. Its gradient has only rounding
    // errors.
    double sum = 0;
    for (const float g : gradients[v]) sum += std::fabs(g);
    CHECK(std::isfinite(sum));
    if (graph->variables()[v].name.find("_conv/bias") == std::string::npos) CHECK(sum > 0);
  }
}

}  // namespace
}  // namespace evergrad::worker
