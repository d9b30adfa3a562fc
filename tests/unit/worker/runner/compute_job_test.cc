// Tests ComputeJob with a backend whose memory the host cannot read. The results of its steps must
// have the same bits as on the CPU.
#include "worker/runner/compute_job.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/random/philox.h"
#include "common/tensor/convert.h"
#include "tests/unit/worker/backend/fixtures/apart_backend.h"

namespace evergrad::worker {
namespace {

constexpr char kYaml[] = R"(
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: made}
spec:
  data:
    train: {format: synthetic, examples: 1000, seed: 7}
    fields:
      features: {type: ids, size: 5, ids: 40}
      numbers: {type: float, size: 6}
      click: {type: label}
    batch_size: 8
  model:
    inputs: {features: {shape: [5]}, numbers: {shape: [6]}}
    tables:
      factors: {dimension: 4, initializer: {type: truncated_normal, stddev: 0.1}, embeddings_regularizer: {l2: 0.01}}
      weights: {dimension: 1, initializer: zeros}
    layers:
      - {name: linear, type: embedding, table: weights, combiner: sum, input: features}
      - {name: vectors, type: embedding, table: factors, input: features}
      - {name: pairs, type: factorization_machine, input: vectors}
      - {name: flat, type: flatten, input: vectors}
      - {name: normal, type: batch_normalization, input: numbers}
      - {name: all, type: concatenate, input: [flat, normal]}
      - {name: deep1, type: dense, units: 9, activation: tanh, kernel_regularizer: {l2: 0.02}}
      - {name: drop, type: dropout, rate: 0.3}
      - {name: deep, type: dense, units: 1}
      - {name: logit, type: add, input: [linear, pairs, deep]}
    losses: {type: binary_crossentropy, from_logits: true, output: logit, labels: click}
    metrics: [auc, binary_accuracy]
  optimizers: [{type: sgd, learning_rate: 0.1}]
  training: {epochs: 1, steps_per_closure: 4WIRE}
)";

// A job that the test drives as the runner does. The test makes the values.
struct Job {
  Job(const std::string& wire, std::shared_ptr<ComputeBackend> backend) {
    std::string yaml = kYaml;
    yaml.replace(yaml.find("WIRE"), 4, wire.empty() ? "" : absl::StrCat(", wire_dtype: ", wire));
    config::ParsedJob parsed = config::ParseJob(yaml, {});
    for (const auto& mistake : parsed.mistakes) UNSCOPED_INFO(mistake.text);
    REQUIRE(parsed.spec.has_value());
    spec = std::make_shared<const config::JobSpec>(*std::move(parsed.spec));
    compute = std::make_unique<ComputeJob>(spec, 11, std::move(backend),
                                           DataOptions{std::uint64_t{1} << 30}, &limit);
    const absl::Status opened = compute->Open({true, false, true});
    INFO(opened.ToString());
    REQUIRE(opened.ok());
    const v1::DescribeResult described = *compute->Describe();
    v1::Plan plan;
    for (const v1::VariableSpec& variable : described.variables()) {
      const std::uint64_t rows = variable.shape(0), parts = std::min<std::uint64_t>(rows, 2);
      for (std::uint64_t i = 0; i < parts; ++i) {
        v1::ShardSpec& shard = *plan.add_shards();
        shard.set_shard(static_cast<std::uint32_t>(plan.shards_size() - 1));
        *shard.mutable_variable() = variable;
        shard.set_row_begin(rows * i / parts);
        shard.set_row_end(rows * (i + 1) / parts);
      }
    }
    *plan.mutable_tables() = described.tables();
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
      v1::ShardSpec& shard = *plan.add_shards();
      shard.set_shard(static_cast<std::uint32_t>(plan.shards_size() - 1));
      shard.mutable_slot()->set_slot(slot);
      shard.mutable_slot()->set_slots(4);
    }
    layout = std::make_shared<const Layout>(*Layout::FromPlan(plan));
    REQUIRE(compute->UseLayout(layout).ok());
  }
  // Adds the values of the shard at this version. They come in a separate frame.
  void Pull(std::uint32_t shard, std::uint64_t version) {
    const ShardSlice& slice = layout->slice(ShardId(shard));
    std::vector<float> values(slice.elements);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          0.25f +
          0.5f * random::Uniform(random::KeyOf(version, layout->variable_of(ShardId(shard)).name),
                                 slice.first_element + i);
    auto frame = std::make_shared<tensor::AlignedBuffer>(slice.wire_bytes());
    tensor::Narrow(slice.wire, values.data(), values.size(), frame->data());
    PulledShard pulled;
    pulled.shard = ShardId(shard);
    pulled.values = {frame, {frame->data(), frame->size()}};
    pulled.frame_bytes = frame->size();
    pulled_.push_back(std::move(pulled));
  }
  ReadyBatch Read(std::uint64_t first, std::uint64_t size) const {
    ReadyBatch batch;
    batch.size = static_cast<std::int64_t>(size);
    std::vector<std::span<std::byte>> to;
    for (std::uint64_t i = 0; i < size; ++i) batch.examples.push_back(first + i);
    for (const Field& field : compute->train()->fields())
      batch.fields.emplace_back(size * field.shape.elements() * tensor::DTypeBytes(field.dtype));
    for (tensor::AlignedBuffer& field : batch.fields) to.emplace_back(field.data(), field.size());
    REQUIRE(compute->train()->Read(batch.examples, to).ok());
    return batch;
  }
  // Returns the rows of the batch. With `as_pulled`, the rows have their wire types, as a server
  // sends them.
  std::shared_ptr<ComputeJob::BatchRows> RowsOf(const ReadyBatch& batch, bool as_pulled = false) {
    auto rows = *compute->RowsOf(batch, layout, &scratch);
    rows->values = rows->slots->MakeRows();
    for (std::size_t t = 0; t < rows->values.size(); ++t) {
      const std::span<float> values = rows->values[t].floats();
      const std::uint32_t dimension = layout->tables()[t].dimension;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t id = rows->lookup[t].ids[i / dimension];
        values[i] = random::Uniform(random::KeyOf(t, "rows"),
                                    static_cast<std::uint64_t>(id) * dimension + i % dimension) -
                    0.5f;
      }
      const tensor::WireType wire = layout->tables()[t].wire;
      if (wire == tensor::WireType::kFloat32) continue;
      std::vector<std::byte> narrow(values.size() * 2);
      tensor::Narrow(wire, values.data(), values.size(), narrow.data());
      std::copy(narrow.begin(), narrow.end(),
                tensor::NarrowHome(wire, values.data(), values.size()));
    }
    rows->as_pulled = as_pulled;
    if (!as_pulled) rows->slots->Widen(&rows->values);
    return rows;
  }
  std::vector<PulledShard> TakePulled() { return std::exchange(pulled_, {}); }

  metrics::Registry registry;
  metrics::Limit limit{registry, "data_bytes", "bytes", 1e9};
  std::shared_ptr<const config::JobSpec> spec;
  std::unique_ptr<ComputeJob> compute;
  std::shared_ptr<const Layout> layout;
  UniqueIds scratch;
  std::vector<PulledShard> pulled_;
};

std::vector<std::byte> BytesOf(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

void CheckSame(const StepResult& a, const StepResult& b) {
  CHECK(a.loss_sum == b.loss_sum);
  CHECK(a.finite == b.finite);
  REQUIRE(a.metrics.size() == b.metrics.size());
  for (std::size_t m = 0; m < a.metrics.size(); ++m)
    CHECK((a.metrics[m].count == b.metrics[m].count && a.metrics[m].counts == b.metrics[m].counts));
}

TEST_CASE(
    "steps in device memory equal those of the CPU: changing weights, rows, short batches, wire "
    "types") {
  std::map<std::string, std::uint64_t> bytes_in, bytes_out;
  for (const std::string wire : {"", "bf16", "fp16"}) {
    for (const bool late : {true, false}) {
      INFO("wire " << wire << " late " << late);
      test::ApartBackend* apart = nullptr;
      Job here(wire, std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1}));
      Job there(wire,
                std::make_shared<ComputeBackend>([&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
                  test::ApartOptions options;
                  options.late_in = options.late_compute = late;
                  auto made = std::make_unique<test::ApartBackend>(options);
                  apart = made.get();
                  return made;
                }));
      std::uint64_t version = 0, first = 0;
      for (const std::uint64_t size : {8, 8, 3, 8, 8}) {
        ++version;
        const std::uint64_t uploads = apart->uploads(),
                            host_allocations = apart->host_allocations();
        std::uint64_t changed = 0;
        std::vector<bool> variables(here.layout->variables().size());
        for (std::uint32_t shard = 0; shard < here.layout->dense_shards(); ++shard) {
          if (version > 1 && shard % 3 != version % 3) continue;
          variables[here.layout->slice(ShardId(shard)).variable] = true;
          here.Pull(shard, version);
          there.Pull(shard, version);
        }
        for (const bool v : variables) changed += v ? 1 : 0;
        ComputeJob::Step steps[2];
        StepResult evaluated[2];
        std::shared_ptr<ComputeJob::BatchRows> rows_of[2];
        for (Job* job : {&here, &there}) {
          const ReadyBatch batch = job->Read(first, size);
          job->compute->Absorb(job->TakePulled());
          const auto rows = rows_of[job == &there] = job->RowsOf(batch, job == &there);
          auto step = job->compute->Train(batch, rows.get(), version);
          INFO(step.status().ToString());
          REQUIRE(step.ok());
          steps[job == &there] = *std::move(step);
          // The uploads are: dropout key, numbers, labels, and the rows and positions of two
          // tables.
          if (job == &there) CHECK(apart->uploads() == uploads + changed + 1 + 1 + 1 + 2 * 2);
          if (job == &there)
            CHECK(apart->host_allocations() ==
                  host_allocations + variables.size() +
                      2);  // gradients are downloaded to memory that copies fast
          const auto result = job->compute->Evaluate(batch, rows.get());
          REQUIRE(result.ok());
          evaluated[job == &there] = *result;
        }
        first += size;
        CheckSame(steps[0].result, steps[1].result);
        CheckSame(evaluated[0], evaluated[1]);
        CHECK(steps[0].result.finite);
        CHECK(steps[0].overflowed == steps[1].overflowed);
        for (std::uint32_t shard = 0; shard < here.layout->dense_shards(); ++shard) {
          const auto a = GradientBuffer::Slice(steps[0].gradients, ShardId(shard)),
                     b = GradientBuffer::Slice(steps[1].gradients, ShardId(shard));
          CHECK(BytesOf(a.bytes) == BytesOf(b.bytes));
        }
        const tensor::AlignedBuffer a = rows_of[0]->slots->Gather(*steps[0].row_gradients);
        const tensor::AlignedBuffer b = rows_of[1]->slots->Gather(*steps[1].row_gradients);
        CHECK(a.size() > 0);
        CHECK(BytesOf({a.data(), a.size()}) == BytesOf({b.data(), b.size()}));
      }
      bytes_in[wire] = apart->bytes_in();
      bytes_out[wire] = apart->bytes_out();
    }
  }
  // Gradients and values are copied in the wire's type. Batches, labels, positions and keys are
  // copied in their own types.
  CHECK(bytes_out["bf16"] * 2 == bytes_out[""]);
  CHECK(bytes_out["fp16"] == bytes_out["bf16"]);
  CHECK(bytes_in["bf16"] < bytes_in[""]);
  CHECK(bytes_in["fp16"] == bytes_in["bf16"]);
}

TEST_CASE(
    "the end of a job returns its memory to the backend, and a user's error leaves nothing in "
    "flight") {
  test::ApartBackend* apart = nullptr;
  const auto backend =
      std::make_shared<ComputeBackend>([&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
        auto made = std::make_unique<test::ApartBackend>(test::ApartOptions());
        apart = made.get();
        return made;
      });
  {
    Job job("", backend);
    for (std::uint32_t shard = 0; shard < job.layout->dense_shards(); ++shard) job.Pull(shard, 1);
    job.compute->Absorb(job.TakePulled());
    ReadyBatch batch = job.Read(0, 8);
    const std::size_t label = *job.compute->train()->FindField("click");
    batch.fields[label].floats()[5] = 2;
    const auto rows = job.RowsOf(batch);
    const absl::Status refused = job.compute->Train(batch, rows.get(), 1).status();
    CHECK(refused.message() == "label out of range: value=2 want=0..1 example_in_batch=5");
    const ReadyBatch good = job.Read(0, 8);
    CHECK(job.compute->Train(good, job.RowsOf(good).get(), 1).ok());
    CHECK(apart->memory().used > 0);
  }
  CHECK(apart->memory().used == 0);
}

// Returns the error for a job whose user wrote `yaml` in my.yaml. It is the error of the submission
// or, if there is none, the worker's error. `change` imitates a submitter that checks less than the
// coordinator does.
std::string RefusalOfSubmitted(const std::string& yaml,
                               const std::function<void(config::JobSpec&)>& change = {}) {
  config::ParseOptions written;
  written.file_name = "my.yaml";
  config::ParsedJob parsed = config::ParseJob(yaml, written);
  for (const auto& mistake : parsed.mistakes) UNSCOPED_INFO(mistake.ToString());
  REQUIRE(parsed.spec);
  if (change) change(*parsed.spec);
  config::ParseOptions received;
  received.file_name = "job.yaml";
  received.submission = true;
  config::ParsedJob again = config::ParseJob(config::EmitSubmission(*parsed.spec), received);
  if (!again.spec) return again.mistakes[0].ToString();
  metrics::Registry registry;
  metrics::Limit limit(registry, "data", "", 1);
  ComputeJob job(std::make_shared<const config::JobSpec>(*std::move(again.spec)), 1,
                 std::make_shared<ComputeBackend>(BackendOptions{"cpu", 1}), {}, &limit);
  const absl::Status opened = job.Open({true, false, true});
  return std::string(opened.ok() ? job.Describe().status().message() : opened.message());
}

TEST_CASE(
    "an error of shapes or optimizers names the line of the user's file, not of the effective "
    "YAML") {
  const std::string yaml = R"(# A comment, and every section in a place of its own.
apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: clash}

spec:
  optimizer: {type: sgd}
  model:
    losses:
      labels: y
      type: mean_squared_error
    inputs:

      a: {shape: [INPUT]}
    layers:
      - name: big
        type: dense
        units: 7

      - {name: small, type: dense, units: SMALL, input: a}
      - name: clash
        type: add
        input: [big, small]
      - {name: out, type: dense, units: OUT}
  data:
    fields: {a: {type: float, size: 3}, y: {type: float}}
    train: {format: synthetic, examples: 10}
)";
  const auto with = [&](const std::string& small, const std::string& input,
                        const std::string& out) {
    return absl::StrReplaceAll(yaml, {{"SMALL", small}, {"INPUT", input}, {"OUT", out}});
  };
  CHECK_THAT(RefusalOfSubmitted(with("7", "3", "1"),
                                [](config::JobSpec& spec) { spec.model.layers[1].units = 5; }),
             Catch::StartsWith("my.yaml:21:9: layer `clash`: "));
  CHECK_THAT(RefusalOfSubmitted(with("7", "4", "1")),
             Catch::StartsWith(
                 "my.yaml:14:7: input shape mismatch: source=train field=a model=(4) data=(3)"));
  CHECK_THAT(
      RefusalOfSubmitted(absl::StrReplaceAll(
          with("7", "3", "1"), {{"  optimizer: {type: sgd}\n",
                                 "  optimizers:\n    - {match: \"big/*\", type: sgd}\n"}})),
      Catch::StartsWith("my.yaml:8:5: no entry of `optimizers` matches: variable=small/kernel"));
  CHECK_THAT(
      RefusalOfSubmitted(with("7", "3", "1"),
                         [](config::JobSpec& spec) { spec.model.layers[3].units = 2; }),
      Catch::StartsWith("my.yaml:10:7: loss `mean_squared_error`: a field has the wrong number of "
                        "labels per example: field=`y` want=2"));
}

}  // namespace
}  // namespace evergrad::worker
