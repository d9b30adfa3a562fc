// Tests how the inputs and labels of a model are found in a data set, and how the model is
// described.
#include "worker/runner/model_inputs.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "worker/backend/backend.h"
#include "worker/runner/describe_model.h"

namespace evergrad::worker {
namespace {

using Fields = std::vector<config::FieldSpec>;

// A job with the input `numbers` and the labels `click`, and its data. `change` alters the fields
// of the data after the job was checked. Before the check, fields that do not fit would be refused.
struct Opened {
  explicit Opened(const std::function<void(Fields*)>& change = nullptr) {
    config::ParsedJob parsed = config::ParseJob(R"(
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: made}
spec:
  data:
    train: {format: synthetic, examples: 100, seed: 7}
    fields: {click: {type: label}, numbers: {type: float, size: 6}}
    batch_size: 8
  model:
    inputs: {numbers: {shape: [6]}}
    layers:
      - {name: logit, type: dense, units: 1}
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
  optimizers: [{type: sgd, learning_rate: 0.1}]
  training: {epochs: 1, steps_per_closure: 4}
)",
                                                {});
    for (const auto& mistake : parsed.mistakes) UNSCOPED_INFO(mistake.text);
    REQUIRE(parsed.spec.has_value());
    spec = *std::move(parsed.spec);
    REQUIRE(spec.data.fields.size() == 2);
    REQUIRE(spec.data.fields[0].name == "click");
    if (change) change(&spec.data.fields);
    auto made = MakeBackend(BackendOptions{"cpu", 1, false, ""});
    REQUIRE(made.ok());
    backend = *std::move(made);
    auto built = Graph::Build(spec.model, backend.get(), Precision::kFloat32);
    REQUIRE(built.ok());
    graph = *std::move(built);
    auto opened = OpenDataset(*spec.data.train, spec.data.fields, nullptr, DataOptions());
    REQUIRE(opened.ok());
    data = *std::move(opened);
  }
  absl::Status Bind() { return inputs.Bind(spec, *graph, *data, "train"); }
  // Returns two examples whose bytes are all zero.
  ReadyBatch Batch() const {
    ReadyBatch batch;
    batch.size = 2;
    for (const Field& field : data->fields()) {
      batch.fields.emplace_back(batch.size * field.shape.elements() *
                                tensor::DTypeBytes(field.dtype));
    }
    return batch;
  }

  config::JobSpec spec;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Dataset> data;
  ModelInputs inputs;
};

// Makes the labels integers.
void IntegerClick(Fields* fields) {
  (*fields)[0].type = "ids";
  (*fields)[0].ids = 9;
}

TEST_CASE("inputs and labels are views of the fields with their names, whatever their order") {
  Opened o;
  REQUIRE(o.Bind().ok());
  const ReadyBatch batch = o.Batch();
  const std::vector<Values> inputs = o.inputs.Of(*o.graph, batch);
  REQUIRE(inputs.size() == 1);
  const std::span<const float> numbers = batch.fields[*o.data->FindField("numbers")].floats();
  CHECK(inputs[0].floats.data() == numbers.data());
  CHECK(inputs[0].floats.size() == 12);
  tensor::AlignedBuffer memory;
  const auto labels = o.inputs.LabelsOf(
      o.spec, batch,
      [](std::size_t) -> tensor::AlignedBuffer { throw std::logic_error("unneeded memory"); },
      &memory);
  REQUIRE(labels.ok());
  CHECK(labels->data() == batch.fields[*o.data->FindField("click")].floats().data());
}

TEST_CASE("integer labels become float32 in memory that is kept, unless float32 lacks them") {
  Opened o(IntegerClick);
  REQUIRE(o.Bind().ok());
  ReadyBatch batch = o.Batch();
  auto* const values =
      reinterpret_cast<std::int64_t*>(batch.fields[*o.data->FindField("click")].data());
  values[0] = -3;
  values[1] = 1 << 24;
  tensor::AlignedBuffer memory;
  int allocations = 0;
  const auto labels = [&] {
    return o.inputs.LabelsOf(
        o.spec, batch,
        [&](std::size_t bytes) {
          ++allocations;
          return tensor::AlignedBuffer(bytes);
        },
        &memory);
  };
  for (int call = 0; call < 2; ++call) {
    const auto floats = labels();
    REQUIRE(floats.ok());
    REQUIRE(floats->size() == 2);
    CHECK((*floats)[0] == -3.0f);
    CHECK((*floats)[1] == 16777216.0f);
  }
  CHECK(allocations == 1);
  values[1] = (1 << 24) + 1;
  CHECK(BlameOf(labels().status()) == Blame::kUser);
}

TEST_CASE("a field that is missing, or has another shape or type, is a user error with its name") {
  const auto refused = [](const std::function<void(Fields*)>& change, const char* text) {
    Opened o(change);
    const absl::Status status = o.Bind();
    CHECK(BlameOf(status) == Blame::kUser);
    CHECK_THAT(std::string(status.message()), Catch::Contains(text));
  };
  refused([](Fields* fields) { (*fields)[1].name = "others"; }, "field=numbers");
  refused([](Fields* fields) { (*fields)[1].size = 5; }, "input shape mismatch");
  refused(
      [](Fields* fields) {
        (*fields)[1].type = "ids";
        (*fields)[1].ids = 9;
      },
      "input type mismatch");
  refused([](Fields* fields) { (*fields)[0].name = "other"; }, "field=click");
}

TEST_CASE("a model is described with its variables, examples and parameters") {
  const Opened o;
  const auto result = DescribeModel(o.spec, 3, *o.graph, *o.data, nullptr);
  REQUIRE(result.ok());
  CHECK(result->train_examples() == 100);
  CHECK(result->eval_examples() == 0);
  REQUIRE(result->variables_size() == 2);
  CHECK(result->parameters() == 7);
  CHECK(result->tables_size() == 0);
  CHECK(result->variables(0).optimizer().type() == "sgd");
}

}  // namespace
}  // namespace evergrad::worker
