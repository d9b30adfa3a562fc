// Measures a worker's training step of the CNN conv16-pool-conv32-pool-dense128-dense10 with batch
// 128. It is compared with a bound that no implementation on oneDNN can beat: the sum of the times
// of the primitives that the step needs. Each primitive is timed alone on warm memory, in the
// layouts that are fastest in oneDNN, without a reorder, loss, copy or check. The program uses one
// thread, as each of two workers on two cores does. The step and the primitives are measured in
// turn. The figures are medians of this thread's CPU time, so that other processes do not slow
// either side. Prints one JSON object a line (tests/bench/run.py).
// 128. It is compared with a bound that no implementation on oneDNN can beat: the sum of the times
// of the primitives that the step needs. Each primitive is timed alone on warm memory, in the
// layouts that are fastest in oneDNN, without a reorder, loss, copy or check. There is one thread,
// as in each of two workers on two cores. The step and the primitives run in turn. The figures are
// medians of this thread's CPU time, so that other processes do not slow either side. Prints one
// JSON object a line (tests/bench/run.py).
//
//   worker_bench [--detail]
//       writes each primitive's time to standard error
//   worker_bench --graph THREADS
//       only the step, in examples/s of wall-clock time: the graph without servers, to compare with
//       a whole cluster
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/random/philox.h"
#include "dnnl.hpp"
#include "tests/bench/figures.h"
#include "worker/graph/graph.h"

extern "C" void omp_set_num_threads(int threads);  // a function of libgomp; clang has no omp.h

namespace evergrad {
namespace {

using bench::Median;

using dnnl::memory;
using Tag = memory::format_tag;

constexpr std::int64_t kBatch = 128;

double Seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
// The oneDNN primitives that one training step needs.
class Primitives {
 public:
  Primitives() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    Pool("pool1", 26, 16, Convolution("conv1", 28, 1, 16, false));
    Pool("pool2", 11, 32, Convolution("conv2", 13, 16, 32, true));
    Dense("dense1", 800, 128, true);
    Dense("logits", 128, 10, false);
  }

  // Times each primitive alone, several times in a row. Returns the sum of the medians in seconds.
  double Measure(bool print) {
    double sum = 0;
    for (auto& [name, run] : runs_) {
      std::vector<double> times;
      for (int i = 0; i < 9; ++i) {
        const double begin = Seconds();
        run();
        times.push_back(Seconds() - begin);
      }
      sum += Median(times);
      if (print) std::fprintf(stderr, "  %-28s %8.3f ms\n", name.c_str(), Median(times) * 1e3);
    }
    return sum;
  }

 private:
  static memory::desc Desc(memory::dims dims, Tag tag = Tag::any) {
    return {std::move(dims), memory::data_type::f32, tag};
  }
  memory Memory(const memory::desc& desc) {
    memory made(desc, engine_);
    float* values = static_cast<float*>(made.get_data_handle());
    for (std::size_t i = 0; i < desc.get_size() / sizeof(float); ++i)
      values[i] = random::Uniform(1, i) - 0.5f;
    return made;
  }
  void Add(std::string name, dnnl::primitive primitive, std::unordered_map<int, memory> arguments) {
    runs_.emplace_back(std::move(name),
                       [this, primitive, arguments] { primitive.execute(stream_, arguments); });
  }
  // Adds the derivative of a relu, which is computed from the relu's output.
  void ReluBackward(const std::string& name, const memory::desc& desc) {
    const dnnl::eltwise_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, dnnl::algorithm::eltwise_relu, desc, 0.0f, 0.0f},
        engine_);
    const dnnl::eltwise_backward::primitive_desc made(
        {dnnl::algorithm::eltwise_relu, desc, desc, 0.0f, 0.0f}, engine_, forward);
    const memory gradient = Memory(desc);
    Add(name + " relu backward", dnnl::eltwise_backward(made),
        {{DNNL_ARG_SRC, Memory(desc)},
         {DNNL_ARG_DIFF_DST, gradient},
         {DNNL_ARG_DIFF_SRC, gradient}});
  }
  static dnnl::primitive_attr FusedRelu(bool relu) {
    dnnl::post_ops ops;
    if (relu) ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(ops);
    return attributes;
  }

  // Adds a convolution with its derivatives, and returns the layout of its output.
  memory::desc Convolution(const std::string& name, std::int64_t in, std::int64_t channels,
                           std::int64_t filters, bool backward_data) {
    const std::int64_t out = in - 2;
    const auto x = Desc({kBatch, channels, in, in}), w = Desc({filters, channels, 3, 3}),
               y = Desc({kBatch, filters, out, out}), b = Desc({filters}, Tag::x);
    const dnnl::memory::dims one{1, 1}, none{0, 0};
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x, w, b, y, one,
         none, none},
        FusedRelu(true), engine_);
    Add(name + " forward+relu", dnnl::convolution_forward(forward),
        {{DNNL_ARG_SRC, Memory(forward.src_desc())},
         {DNNL_ARG_WEIGHTS, Memory(forward.weights_desc())},
         {DNNL_ARG_BIAS, Memory(b)},
         {DNNL_ARG_DST, Memory(forward.dst_desc())}});
    ReluBackward(name, forward.dst_desc());
    const dnnl::convolution_backward_weights::primitive_desc weights(
        {dnnl::algorithm::convolution_direct, x, w, b, y, one, none, none}, engine_, forward);
    Add(name + " backward weights", dnnl::convolution_backward_weights(weights),
        {{DNNL_ARG_SRC, Memory(weights.src_desc())},
         {DNNL_ARG_DIFF_WEIGHTS, Memory(weights.diff_weights_desc())},
         {DNNL_ARG_DIFF_BIAS, Memory(b)},
         {DNNL_ARG_DIFF_DST, Memory(weights.diff_dst_desc())}});
    if (!backward_data) return forward.dst_desc();
    const dnnl::convolution_backward_data::primitive_desc data(
        {dnnl::algorithm::convolution_direct, x, w, y, one, none, none}, engine_, forward);
    Add(name + " backward data", dnnl::convolution_backward_data(data),
        {{DNNL_ARG_DIFF_SRC, Memory(data.diff_src_desc())},
         {DNNL_ARG_WEIGHTS, Memory(data.weights_desc())},
         {DNNL_ARG_DIFF_DST, Memory(data.diff_dst_desc())}});
    return forward.dst_desc();
  }

  void Pool(const std::string& name, std::int64_t in, std::int64_t channels,
            const memory::desc& x) {
    const std::int64_t out = in / 2;
    const dnnl::memory::dims two{2, 2}, none{0, 0};
    const dnnl::pooling_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, dnnl::algorithm::pooling_max, x,
         Desc({kBatch, channels, out, out}), two, two, none, none},
        engine_);
    const memory::desc y = forward.dst_desc();
    const memory from = Memory(x), to = Memory(y), workspace(forward.workspace_desc(), engine_);
    const std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, from}, {DNNL_ARG_DST, to}, {DNNL_ARG_WORKSPACE, workspace}};
    Add(name + " forward", dnnl::pooling_forward(forward), arguments);
    runs_.back().second();  // The forward pass fills the workspace that the backward pass reads.
    const dnnl::pooling_backward::primitive_desc backward(
        {dnnl::algorithm::pooling_max, x, y, two, two, none, none}, engine_, forward);
    Add(name + " backward", dnnl::pooling_backward(backward),
        {{DNNL_ARG_DIFF_SRC, Memory(x)}, {DNNL_ARG_DIFF_DST, to}, {DNNL_ARG_WORKSPACE, workspace}});
  }

  void Dense(const std::string& name, std::int64_t in, std::int64_t out, bool relu) {
    const auto x = Desc({kBatch, in}, Tag::ab), w = Desc({out, in}),
               y = Desc({kBatch, out}, Tag::ab), b = Desc({out}, Tag::x);
    const dnnl::inner_product_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, x, w, b, y}, FusedRelu(relu), engine_);
    Add(name + " forward", dnnl::inner_product_forward(forward),
        {{DNNL_ARG_SRC, Memory(forward.src_desc())},
         {DNNL_ARG_WEIGHTS, Memory(forward.weights_desc())},
         {DNNL_ARG_BIAS, Memory(b)},
         {DNNL_ARG_DST, Memory(forward.dst_desc())}});
    if (relu) ReluBackward(name, forward.dst_desc());
    const dnnl::inner_product_backward_weights::primitive_desc weights({x, w, b, y}, engine_,
                                                                       forward);
    Add(name + " backward weights", dnnl::inner_product_backward_weights(weights),
        {{DNNL_ARG_SRC, Memory(weights.src_desc())},
         {DNNL_ARG_DIFF_WEIGHTS, Memory(weights.diff_weights_desc())},
         {DNNL_ARG_DIFF_BIAS, Memory(b)},
         {DNNL_ARG_DIFF_DST, Memory(weights.diff_dst_desc())}});
    const dnnl::inner_product_backward_data::primitive_desc data({x, w, y}, engine_, forward);
    Add(name + " backward data", dnnl::inner_product_backward_data(data),
        {{DNNL_ARG_DIFF_SRC, Memory(data.diff_src_desc())},
         {DNNL_ARG_WEIGHTS, Memory(data.weights_desc())},
         {DNNL_ARG_DIFF_DST, Memory(data.diff_dst_desc())}});
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::pair<std::string, std::function<void()>>> runs_;
};

config::LayerSpec Layer(const char* type, const char* name, const char* input) {
  config::LayerSpec layer;
  layer.type = type, layer.name = name, layer.inputs = {input};
  return layer;
}

config::ModelSpec Cnn() {
  config::ModelSpec model;
  model.inputs = {{"image", {28, 28, 1}}};
  const auto conv = [](const char* name, const char* input, std::uint64_t filters) {
    auto layer = Layer("conv2d", name, input);
    layer.filters = filters, layer.kernel_h = layer.kernel_w = 3, layer.activation = "relu";
    return layer;
  };
  const auto pool = [](const char* name, const char* input) {
    auto layer = Layer("max_pooling2d", name, input);
    layer.pool_h = layer.pool_w = layer.stride_h = layer.stride_w = 2;
    return layer;
  };
  const auto dense = [](const char* name, const char* input, std::uint64_t units,
                        const char* activation) {
    auto layer = Layer("dense", name, input);
    layer.units = units, layer.activation = activation;
    return layer;
  };
  model.layers = {conv("conv1", "image", 16),
                  pool("pool1", "conv1"),
                  conv("conv2", "pool1", 32),
                  pool("pool2", "conv2"),
                  Layer("flatten", "flat", "pool2"),
                  dense("dense1", "flat", 128, "relu"),
                  dense("logits", "dense1", 10, "linear")};
  config::LossSpec loss;
  loss.type = "sparse_categorical_crossentropy", loss.from_logits = true, loss.output = "logits",
  loss.labels = "label";
  model.losses = {loss};
  model.metrics = {"accuracy"};
  return model;
}

class Step {
 public:
  explicit Step(int threads) {
    backend_ = worker::MakeBackend({"cpu", threads}).value();
    graph_ = worker::Graph::Build(Cnn(), backend_.get()).value();
    for (const worker::Variable& variable : graph_->variables()) {
      weights_.emplace_back(variable.shape.elements());
      gradients_.emplace_back(variable.shape.elements());
      for (std::size_t i = 0; i < weights_.back().size(); ++i)
        weights_.back()[i] = 0.2f * random::Uniform(random::KeyOf(1, variable.name), i) - 0.1f;
    }
    images_.resize(kBatch * 784);
    for (std::size_t i = 0; i < images_.size(); ++i) images_[i] = random::Uniform(2, i);
    for (std::int64_t i = 0; i < kBatch; ++i) labels_.push_back(static_cast<float>(i % 10));
    batch_.size = kBatch, batch_.inputs = {images_}, batch_.labels = labels_;
    weight_spans_.assign(weights_.begin(), weights_.end());
    gradient_spans_.assign(gradients_.begin(), gradients_.end());
  }
  std::string backend() const { return backend_->name(); }
  double Measure() {
    const double begin = Seconds();
    Run();
    return Seconds() - begin;
  }
  void Run() {
    if (!graph_->TrainStep(weight_spans_, batch_, 0, gradient_spans_)->finite) std::abort();
  }

 private:
  std::unique_ptr<worker::Backend> backend_;
  std::unique_ptr<worker::Graph> graph_;
  std::vector<std::vector<float>> weights_, gradients_;
  std::vector<float> images_, labels_;
  worker::Batch batch_;
  std::vector<worker::AnyIn> weight_spans_;
  std::vector<worker::AnyOut> gradient_spans_;
};

int Graph(int threads) {
  omp_set_num_threads(threads);
  Step step(threads);
  constexpr int kSteps = 470;  // an epoch of 60,000 examples
  for (int i = 0; i < 20; ++i) step.Run();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) step.Run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("{\"name\": \"graph\", \"value\": %.1f, \"unit\": \"examples/s\"}\n",
              static_cast<double>(kSteps * kBatch) / seconds);
  return 0;
}

int Main(int argc, char** argv) {
  bool detail = false;
  if (argc == 3 && std::string(argv[1]) == "--graph") {
    const int threads = std::atoi(argv[2]);
    if (threads >= 1 && threads <= 256) return Graph(threads);
    std::fprintf(stderr, "worker_bench: threads from 1 to 256 expected: %s\n", argv[2]);
    return 2;
  }
  if (argc == 2 && std::string(argv[1]) == "--detail") {
    detail = true;
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: worker_bench [--detail | --graph THREADS]\n");
    return 2;
  }
  omp_set_num_threads(1);
  Primitives primitives;
  Step step(1);
  std::vector<double> ours, theirs;
  for (int round = 0; round < 11; ++round) {
    theirs.push_back(primitives.Measure(detail && round == 10));
    std::vector<double> steps;
    for (int i = 0; i < 9; ++i) steps.push_back(step.Measure());
    ours.push_back(Median(steps));
  }
  const double rate = kBatch / Median(ours), reference = kBatch / Median(theirs);
  std::fprintf(stderr, "%s: step %.3f ms, its primitives alone %.3f ms\n", step.backend().c_str(),
               Median(ours) * 1e3, Median(theirs) * 1e3);
  bench::Print("training step, CNN conv16-pool-conv32-pool-dense128, batch 128, one thread", rate,
               "examples/CPU s", "sum of its oneDNN primitives timed alone", reference,
               rate / reference, 0.6);
  return 0;
}

}  // namespace
}  // namespace evergrad

int main(int argc, char** argv) { return evergrad::Main(argc, argv); }
