// Measures training steps on a GPU (deploy/scripts/gpu_check.sh --only bench). Prints one JSON
// object.
//
//   gpu_bench train --job FILE [--image N] [--batch N]
//       steps of the job's model on arrays that stay on the device; then steps for which the batch
//       and the weights are copied to the device and the gradients back, as a worker does
//   gpu_bench mlp [--layers N] [--width N] [--batch N]
//       dense layers of one width, and the same matrix products in a bare loop of cuBLASLt
//   gpu_bench growth
//       memory before and after many steps of a small model
//
// Options of all three:
//
//   --steps N --warm-up N --device gpu:N --cuda-library FILE
//   --precision float32|tf32|mixed_bfloat16|mixed_float16
//
// Rates are in wall-clock time, over consecutive steps. The times of kernels are measured by the
// device itself.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/random/philox.h"
#include "common/tensor/convert.h"
#include "common/time/clock.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/library.h"
#include "worker/backend/precision.h"
#include "worker/graph/graph.h"
#include "worker/graph/host_step.h"

namespace evergrad {
namespace {

using nlohmann::json;
using namespace worker;

struct Options {
  std::string mode, job, device = "gpu", library;
  Precision precision = Precision::kFloat32;
  std::int64_t image = 0, batch = 0, layers = 8, width = 4096, steps = 20, warm_up = 6;
};

double Now() {
  static const RealClock clock;
  return std::chrono::duration<double>(clock.Now()).count();
}

absl::StatusOr<config::ModelSpec> ModelOf(const std::string& yaml) {
  config::ParsedJob parsed = config::ParseJob(yaml, {});
  if (!parsed.spec) return absl::InvalidArgumentError(parsed.mistakes.front().ToString());
  return parsed.spec->model;
}

// Returns initial values of a variable as in a model: kernels with He's variance, ones for scales,
// and zeros for all others.
std::vector<float> Initial(const Variable& variable) {
  const bool ones = variable.name.ends_with("/gamma") || variable.name.ends_with("variance");
  const float he =
      std::sqrt(6.0f / static_cast<float>(std::max<std::uint64_t>(variable.fan_in, 1)));
  std::vector<float> values(variable.shape.elements(), ones ? 1.0f : 0.0f);
  if (variable.name.ends_with("/kernel")) {
    const std::uint64_t key = random::KeyOf(3, variable.name);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = he * (2 * random::Uniform(key, i) - 1);
  }
  return values;
}

// A model with one batch, all in the host's memory.
struct Model {
  config::ModelSpec spec;
  std::unique_ptr<Graph> graph;
  std::vector<std::vector<float>> weights, inputs, gradients;
  std::vector<float> labels;
  Batch batch;

  static absl::StatusOr<std::unique_ptr<Model>> Make(config::ModelSpec spec, Backend* backend,
                                                     Precision precision, std::int64_t size,
                                                     std::int64_t classes) {
    auto model = std::make_unique<Model>();
    model->spec = std::move(spec);
    EG_ASSIGN_OR_RETURN(model->graph, Graph::Build(model->spec, backend, precision));
    for (const Variable& variable : model->graph->variables()) {
      model->weights.push_back(Initial(variable));
      model->gradients.emplace_back(variable.shape.elements());
    }
    for (const GraphInput& input : model->graph->inputs()) {
      std::vector<float>& values =
          model->inputs.emplace_back(static_cast<std::size_t>(size) * input.shape.elements());
      const std::uint64_t key = random::KeyOf(5, input.name);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = random::Uniform(key, i);
    }
    model->labels.resize(static_cast<std::size_t>(size) * model->graph->label_elements());
    for (std::size_t i = 0; i < model->labels.size(); ++i) {
      const float u = random::Uniform(6, i);
      model->labels[i] = classes > 0 ? std::floor(u * static_cast<float>(classes)) : u;
    }
    model->batch.size = size;
    model->batch.inputs.assign(model->inputs.begin(), model->inputs.end());
    model->batch.labels = model->labels;
    return model;
  }
  std::vector<AnyIn> Weights() const { return {weights.begin(), weights.end()}; }
};

// Returns what the device measured between `before` and `after`, and the wall-clock `seconds` of
// the same steps.
json Measured(const DeviceUse& before, const DeviceUse& after, double seconds, std::int64_t steps,
              std::int64_t examples) {
  const double n = static_cast<double>(
                   std::max<std::uint64_t>(after.measured - before.measured, 1)),
               step = seconds / static_cast<double>(steps);
  const double kernels = (after.kernels - before.kernels) / n;
  return {{"examples_per_second", static_cast<double>(steps * examples) / seconds},
          {"step_ms", 1e3 * step},
          {"kernels_ms", 1e3 * kernels},
          {"in_ms", 1e3 * (after.in - before.in) / n},
          {"out_ms", 1e3 * (after.out - before.out) / n},
          {"stalled_ms", 1e3 * (after.stalled - before.stalled) / n},
          {"outside_kernels_share", std::max(0.0, 1 - kernels / step)},
          {"replayed", after.replays - before.replays},
          {"memory_peak_bytes", after.memory.peak}};
}

// Measures steps on arrays that stay on the device.
absl::StatusOr<json> OnDevice(Backend& backend, Model& model, const Options& options) {
  std::vector<Memory> held;
  const auto put = [&](std::span<const float> from) -> absl::StatusOr<std::span<float>> {
    EG_ASSIGN_OR_RETURN(Memory memory,
                        backend.Allocate(std::max<std::size_t>(from.size_bytes(), 4), "bench"));
    const std::span<float> to = memory.as<float>().first(from.size());
    backend.Upload(DeviceQueue::kCompute, std::as_bytes(from), std::as_writable_bytes(to));
    held.push_back(std::move(memory));
    return to;
  };
  std::vector<AnyIn> weights;
  std::vector<AnyOut> gradients;
  Batch batch = model.batch;
  for (const auto& values : model.weights) {
    EG_ASSIGN_OR_RETURN(const Out there, put(values));
    weights.push_back(there);
    EG_ASSIGN_OR_RETURN(const Out gradient, put(values));
    gradients.push_back(gradient);
  }
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    EG_ASSIGN_OR_RETURN(batch.inputs[i].floats, put(model.inputs[i]));
  }
  EG_ASSIGN_OR_RETURN(batch.labels, put(model.labels));
  DeviceUse before;
  double begin = 0, loss = 0;
  for (std::int64_t i = 0; i < options.warm_up + options.steps; ++i) {
    if (i == options.warm_up) before = *backend.device_use(false), begin = Now();
    EG_RETURN_IF_ERROR(model.graph->QueueTrainStep(
        weights, {}, batch, static_cast<std::uint64_t>(i), gradients, {}, {}));
    EG_ASSIGN_OR_RETURN(const StepResult result, model.graph->FinishStep());
    loss = result.loss_sum / static_cast<double>(batch.size);
  }
  const double seconds = Now() - begin;
  json measured = Measured(before, *backend.device_use(false), seconds, options.steps, batch.size);
  measured["loss"] = loss;
  return measured;
}

// Measures steps as a worker makes them: the next batch is copied in advance, the weights are
// copied to the device, and the gradients are copied back.
absl::StatusOr<json> FromHost(Backend& backend, Model& model, const Options& options) {
  HostStep steps(model.graph.get(), &backend);
  std::vector<tensor::AlignedBuffer> pinned;
  std::vector<AnyOut> gradients;
  for (const auto& values : model.weights) {
    EG_ASSIGN_OR_RETURN(tensor::AlignedBuffer buffer,
                        backend.AllocateHost(values.size() * sizeof(float)));
    pinned.push_back(std::move(buffer));
    gradients.push_back(pinned.back().floats());
  }
  DeviceUse before;
  double begin = 0;
  for (std::int64_t i = 0; i < options.warm_up + options.steps; ++i) {
    if (i == options.warm_up) before = *backend.device_use(false), begin = Now();
    steps.AllChanged();
    EG_RETURN_IF_ERROR(steps
                           .TrainStep(model.Weights(), {}, model.batch,
                                      static_cast<std::uint64_t>(i), gradients, {},
                                      [&] { steps.PrefetchBatch(model.batch); })
                           .status());
  }
  return Measured(before, *backend.device_use(false), Now() - begin, options.steps,
                  model.batch.size);
}

absl::StatusOr<DeviceChoice> ChooseGpu(const Options& options) {
  EG_ASSIGN_OR_RETURN(DeviceChoice choice, ChooseDevice(options.device, options.library));
  if (!choice.gpu()) return absl::InvalidArgumentError("--device names a GPU");
  return choice;
}

absl::StatusOr<std::unique_ptr<CudaBackend>> Device(const Options& options) {
  EG_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseGpu(options));
  CudaOptions cuda;
  EG_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, MakeCudaBackend(choice, cuda));
  // Algorithms are chosen by their measured speed, as for a job that need not be deterministic.
  backend->SetReproducible(false);
  EG_RETURN_IF_ERROR(backend->CheckPrecision(options.precision));
  backend->SetTf32(options.precision == Precision::kTf32);
  return backend;
}

absl::StatusOr<json> Train(const Options& options) {
  std::ifstream file(options.job);
  if (!file) return absl::NotFoundError(absl::StrCat("no such job: ", options.job));
  std::stringstream text;
  text << file.rdbuf();
  config::ParsedJob parsed = config::ParseJob(text.str(), {});
  if (!parsed.spec) return absl::InvalidArgumentError(parsed.mistakes.front().ToString());
  config::ModelSpec spec = parsed.spec->model;
  if (options.image > 0) {
    for (config::InputSpec& input : spec.inputs)
      if (input.shape.size() == 3)
        input.shape[0] = input.shape[1] = static_cast<std::uint64_t>(options.image);
  }
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend, Device(options));
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      Model::Make(std::move(spec), backend.get(), options.precision,
                                  options.batch > 0 ? options.batch : 256, 10));
  json out = {{"device", backend->name()},
              {"job", options.job},
              {"batch", model->batch.size},
              {"precision", options.precision}};
  EG_ASSIGN_OR_RETURN(out["on_device"], OnDevice(*backend, *model, options));
  EG_ASSIGN_OR_RETURN(out["from_host"], FromHost(*backend, *model, options));
  return out;
}

// The 3 n - 1 matrix products of n dense layers, one after the other. (Each layer has three
// products, but the input of the first layer needs no gradient.) Each product uses the fastest of
// the library's algorithms.
class BareProducts {
 public:
  BareProducts(const EgCudaApi* api, EgContext* context, Precision precision)
      : api_(*api), context_(context), precision_(precision) {}
  ~BareProducts() {
    for (const Product& product : products_) api_.drop_plan(product.plan);
    for (const std::uint64_t address : memory_)
      static_cast<void>(api_.release(context_, address, &error_));
    for (EgEvent* const event : {begin_, end_})
      if (event != nullptr) api_.drop_event(event);
  }
  absl::Status Make(std::int64_t batch, std::int64_t width, std::int64_t layers) {
    EG_RETURN_IF_ERROR(Try(api_.make_event(context_, 1, &begin_, &error_)));
    EG_RETURN_IF_ERROR(Try(api_.make_event(context_, 1, &end_, &error_)));
    const std::uint64_t size = BytesOf(ElementOf(precision_));
    const std::uint64_t values = static_cast<std::uint64_t>(batch * width) * size,
                        weights = static_cast<std::uint64_t>(width * width) * size;
    EG_ASSIGN_OR_RETURN(void* const x, Allocate(values));
    EG_ASSIGN_OR_RETURN(void* const y, Allocate(values));
    // The product does not write to x. If it did, the values would grow from pass to pass and
    // become NaN. Computing with NaN needs less power than with other numbers, so the device would
    // be faster.
    EG_ASSIGN_OR_RETURN(void* const dx, Allocate(values));
    EG_ASSIGN_OR_RETURN(void* const w, Allocate(weights));
    // The gradients of weights are always float32.
    EG_ASSIGN_OR_RETURN(void* const dw, Allocate(weights * sizeof(float) / size));
    EG_ASSIGN_OR_RETURN(workspace_, Allocate(kWorkspaceMax));
    for (const auto& [to, bytes] :
         {std::pair{x, values},
          std::pair{w, weights}}) {  // zeros would need less power, so the device would be faster
      std::vector<float> floats(bytes / size);
      for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = random::Uniform(9, i) - 0.5f;
      std::vector<std::byte> drawn(bytes);
      tensor::Narrow(static_cast<tensor::WireType>(ElementOf(precision_)), floats.data(),
                     floats.size(), drawn.data());
      EG_RETURN_IF_ERROR(
          Try(api_.copy(context_, EG_LANE_COMPUTE, EG_COPY_IN, to, drawn.data(), bytes, &error_)));
      EG_RETURN_IF_ERROR(Wait());
    }
    EG_ASSIGN_OR_RETURN(const Product forward,
                        Choose({batch, width, width, false, false}, x, w, y));
    EG_ASSIGN_OR_RETURN(const Product by_weights,
                        Choose({width, width, batch, true, false}, x, y, dw));
    EG_ASSIGN_OR_RETURN(const Product by_inputs,
                        Choose({batch, width, width, false, true}, y, w, dx));
    products_ = {forward, by_weights, by_inputs};
    for (std::int64_t i = 0; i < layers; ++i) order_.push_back(0);
    for (std::int64_t i = 0; i < layers; ++i) {
      order_.push_back(1);
      if (i + 1 < layers) order_.push_back(2);
    }
    return absl::OkStatus();
  }
  // Returns the seconds that the device needs for one pass over all products, averaged over `steps`
  // passes.
  absl::StatusOr<double> Run(std::int64_t steps) {
    EG_RETURN_IF_ERROR(Try(api_.record(context_, EG_LANE_COMPUTE, begin_, &error_)));
    for (std::int64_t i = 0; i < steps; ++i)
      for (const std::size_t which : order_)
        EG_RETURN_IF_ERROR(Try(
            api_.run_plan(context_, products_[which].plan, &products_[which].arguments, &error_)));
    EG_RETURN_IF_ERROR(Try(api_.record(context_, EG_LANE_COMPUTE, end_, &error_)));
    EG_RETURN_IF_ERROR(Try(api_.wait(end_, &error_)));
    float milliseconds = 0;
    EG_RETURN_IF_ERROR(Try(api_.milliseconds(begin_, end_, &milliseconds, &error_)));
    return 1e-3 * static_cast<double>(milliseconds) / static_cast<double>(steps);
  }

 private:
  static constexpr std::uint64_t kWorkspaceMax = 64ull << 20;
  static constexpr std::int32_t kCandidates = 8;
  struct Product {
    EgPlan* plan = nullptr;
    EgPlanArguments arguments{};
  };
  struct Shape {
    std::int64_t m, n, k;
    bool transpose_a, transpose_b;
  };
  absl::Status Try(std::int32_t kind) {
    return kind == EG_CUDA_OK ? absl::OkStatus() : StatusOf(error_);
  }
  absl::Status Wait() {
    EG_RETURN_IF_ERROR(Try(api_.record(context_, EG_LANE_COMPUTE, end_, &error_)));
    return Try(api_.wait(end_, &error_));
  }
  absl::StatusOr<void*> Allocate(std::uint64_t bytes) {
    std::uint64_t address = 0;
    EG_RETURN_IF_ERROR(Try(api_.allocate(context_, bytes, &address, &error_)));
    memory_.push_back(address);
    return reinterpret_cast<void*>(address);
  }
  absl::StatusOr<Product> Choose(const Shape& shape, const void* a, const void* b, void* d) {
    EgPlanKey key;
    std::memset(&key, 0, sizeof key);
    key.kind = EG_PLAN_MATMUL;
    key.m = shape.m, key.n = shape.n, key.k = shape.k;
    key.transpose_a = shape.transpose_a ? 1 : 0, key.transpose_b = shape.transpose_b ? 1 : 0;
    key.alignment = 16;
    key.type = static_cast<std::int32_t>(ElementOf(precision_));
    key.d_type = shape.transpose_a ? static_cast<std::int32_t>(Element::kFloat32) : key.type;
    key.tf32 = precision_ == Precision::kTf32 ? 1 : 0;
    EgPlanInfo infos[kCandidates];
    std::int32_t count = 0;
    EG_RETURN_IF_ERROR(Try(api_.plans(context_, &key, infos, kCandidates, &count, &error_)));
    Product best;
    double best_seconds = 0;
    for (std::int32_t i = 0; i < count; ++i) {
      if (infos[i].workspace_bytes > kWorkspaceMax) continue;
      Product product;
      if (api_.make_plan(context_, &key, i, &product.plan, &error_) != EG_CUDA_OK) continue;
      product.arguments.a = a, product.arguments.b = b, product.arguments.d = d;
      product.arguments.workspace = workspace_,
      product.arguments.workspace_bytes = infos[i].workspace_bytes;
      products_ = {product};
      order_ = {0};
      absl::StatusOr<double> seconds = Run(1);  // The first pass warms up the device.
      if (seconds.ok()) seconds = Run(2);
      products_.clear();
      order_.clear();
      if (seconds.ok() && (best.plan == nullptr || *seconds < best_seconds)) {
        if (best.plan != nullptr) api_.drop_plan(best.plan);
        best = product, best_seconds = *seconds;
      } else {
        api_.drop_plan(product.plan);
      }
    }
    if (best.plan == nullptr)
      return absl::NotFoundError("cuBLASLt has no algorithm for this product");
    return best;
  }

  const EgCudaApi& api_;
  EgContext* const context_;
  const Precision precision_;
  EgCudaError error_{};
  EgEvent *begin_ = nullptr, *end_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<std::uint64_t> memory_;
  std::vector<Product> products_;
  std::vector<std::size_t> order_;
};

absl::StatusOr<json> Bare(const Options& options, std::int64_t batch) {
  EG_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseGpu(options));
  EgCudaError error{};
  EgContext* context = nullptr;
  const EgOpenOptions open{choice.device.ordinal, 0};
  if (choice.api->open(&open, &context, &error) != EG_CUDA_OK) return StatusOf(error);
  const auto run = [&]() -> absl::StatusOr<json> {
    BareProducts products(choice.api, context, options.precision);
    EG_RETURN_IF_ERROR(products.Make(batch, options.width, options.layers));
    EG_RETURN_IF_ERROR(products.Run(2).status());
    EG_ASSIGN_OR_RETURN(const double seconds, products.Run(options.steps));
    return json{{"step_ms", 1e3 * seconds}};
  };
  absl::StatusOr<json> measured = run();
  choice.api->close(context);
  return measured;
}

absl::StatusOr<json> Mlp(const Options& options) {
  const std::int64_t batch = options.batch > 0 ? options.batch : 8192;
  std::string yaml = absl::StrCat(
      "apiVersion: evergrad.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: mlp}\nspec:\n"
      "  data: {train: {format: synthetic, examples: 8}, fields: {x: {type: float, size: ",
      options.width, "}, y: {type: float, size: ", options.width,
      "}}, batch_size: 8}\n  model:\n    inputs: {x: {shape: [", options.width,
      "]}}\n    layers:\n");
  for (std::int64_t i = 0; i < options.layers; ++i)
    absl::StrAppend(&yaml, "      - {name: dense", i, ", type: dense, units: ", options.width,
                    ", activation: relu", i == 0 ? ", input: x" : "", "}\n");
  absl::StrAppend(&yaml, "    losses: {type: mean_squared_error, output: dense", options.layers - 1,
                  ", labels: y}\n  optimizer: {type: sgd, learning_rate: 0.1}\n  training: "
                  "{epochs: 1, steps_per_closure: 1}\n");
  EG_ASSIGN_OR_RETURN(config::ModelSpec spec, ModelOf(yaml));
  json out = {{"layers", options.layers},
              {"width", options.width},
              {"batch", batch},
              {"precision", options.precision}};
  EG_ASSIGN_OR_RETURN(out["bare"], Bare(options, batch));
  {
    EG_ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend, Device(options));
    EG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                        Model::Make(std::move(spec), backend.get(), options.precision, batch, 0));
    out["device"] = backend->name();
    EG_ASSIGN_OR_RETURN(out["on_device"], OnDevice(*backend, *model, options));
  }
  const double flop = 2.0 * static_cast<double>(batch * options.width) *
                      static_cast<double>(options.width) *
                      static_cast<double>(3 * options.layers - 1);
  out["bare"]["tflops"] = 1e-9 * flop / out["bare"]["step_ms"].get<double>();
  out["on_device"]["tflops"] = 1e-9 * flop / out["on_device"]["step_ms"].get<double>();
  out["share_of_bare"] =
      out["bare"]["step_ms"].get<double>() / out["on_device"]["step_ms"].get<double>();
  return out;
}

absl::StatusOr<json> Growth(const Options& options) {
  constexpr char kYaml[] = R"(apiVersion: evergrad.dev/v1alpha1
kind: TrainingJob
metadata: {name: growth}
spec:
  data: {train: {format: synthetic, examples: 8}, fields: {image: {type: float, shape: [8, 8, 2]}, y: {type: label, classes: 4}}, batch_size: 8}
  model:
    inputs: {image: {shape: [8, 8, 2]}}
    layers:
      - {name: conv, type: conv2d, filters: 4, kernel_size: 3, padding: same, activation: relu, input: image}
      - {name: norm, type: batch_normalization}
      - {name: flat, type: flatten}
      - {name: drop, type: dropout, rate: 0.1}
      - {name: logits, type: dense, units: 4}
    losses: {type: sparse_categorical_crossentropy, from_logits: true, output: logits, labels: y}
  optimizer: {type: sgd, learning_rate: 0.1}
  training: {epochs: 1, steps_per_closure: 1}
)";
  EG_ASSIGN_OR_RETURN(config::ModelSpec spec, ModelOf(kYaml));
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend, Device(options));
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      Model::Make(spec, backend.get(), options.precision, 16, 4));
  EG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> shorter,
                      Model::Make(spec, backend.get(), options.precision, 5, 4));
  HostStep steps(model->graph.get(), backend.get());
  MemoryUse before;
  constexpr std::int64_t kSettled = 50;
  const double begin = Now();
  for (std::int64_t i = 0; i < options.steps; ++i) {
    if (i == std::min(kSettled, options.steps - 1)) before = backend->device_use(true)->memory;
    const Batch& present = i % 10 == 9 ? shorter->batch : model->batch;
    const Batch& next = i % 10 == 8 ? shorter->batch : model->batch;
    steps.Changed(static_cast<std::size_t>(i) % model->weights.size());
    std::vector<AnyOut> gradients(model->gradients.begin(), model->gradients.end());
    EG_RETURN_IF_ERROR(steps
                           .TrainStep(model->Weights(), {}, present, static_cast<std::uint64_t>(i),
                                      gradients, {}, [&] { steps.PrefetchBatch(next); })
                           .status());
  }
  const DeviceUse after = *backend->device_use(true);
  return json{{"device", backend->name()},
              {"steps", options.steps},
              {"seconds", Now() - begin},
              {"replayed", after.replays},
              {"used_bytes", {before.used, after.memory.used}},
              {"reserved_bytes", {before.reserved, after.memory.reserved}},
              // This is the free memory of the whole device, which other processes may use, too.
              {"free_bytes", {before.free, after.memory.free}},
              {"grown_bytes", static_cast<std::int64_t>(after.memory.reserved) -
                                  static_cast<std::int64_t>(before.reserved)}};
}

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  if (argc < 2) return absl::InvalidArgumentError("want a mode: train, mlp or growth");
  options.mode = argv[1];
  std::string precision = "float32";
  const std::map<std::string, std::string*> texts = {{"--job", &options.job},
                                                     {"--device", &options.device},
                                                     {"--cuda-library", &options.library},
                                                     {"--precision", &precision}};
  const std::map<std::string, std::int64_t*> numbers = {
      {"--image", &options.image}, {"--batch", &options.batch}, {"--layers", &options.layers},
      {"--width", &options.width}, {"--steps", &options.steps}, {"--warm-up", &options.warm_up}};
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (const auto text = texts.find(name); text != texts.end() && i + 1 < argc) {
      *text->second = value;
    } else if (const auto number = numbers.find(name); number == numbers.end() ||
                                                       !absl::SimpleAtoi(value, number->second) ||
                                                       *number->second < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option, or not its value: ", name, " ", value));
    }
  }
  if (options.mode != "train" && options.mode != "mlp" && options.mode != "growth")
    return absl::InvalidArgumentError(
        absl::StrCat("unknown mode; one of train, mlp, growth: ", options.mode));
  if (options.steps < 1 || options.layers < 1 || options.width < 1)
    return absl::InvalidArgumentError("--steps, --layers and --width are at least 1");
  const std::optional<Precision> parsed = ParsePrecision(precision);
  if (!parsed)
    return absl::InvalidArgumentError(absl::StrCat(
        "--precision: one of float32, tf32, mixed_bfloat16, mixed_float16: got=", precision));
  options.precision = *parsed;
  return options;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Options> options = Parse(argc, argv);
  const auto run = [&]() -> absl::StatusOr<json> {
    EG_RETURN_IF_ERROR(options.status());
    if (options->mode == "train") return Train(*options);
    if (options->mode == "mlp") return Mlp(*options);
    return Growth(*options);
  };
  const absl::StatusOr<json> result = run();
  if (!result.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", std::string(result.status().message()).c_str());
    return options.ok() ? 1 : 2;
  }
  std::printf("%s\n", result->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc, argv); }
