// The computation of a layer: forward and backward over one batch.
//
// common/layers knows the types, their inputs, output shapes and variables; here each family of
// types has a file that computes them. A layer takes one input or several (merges()) and gives one
// output. It holds neither weights nor activations: the graph hands them in. They are in the
// backend's memory, so that a layer calls primitives and looks at no element. Its own state between
// Forward and Backward (pooling's argmax) is in that memory, too, which makes a layer usable from
// one thread at a time. Shapes are of one example; a batch puts its size in front.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/layers/layer_shapes.h"
#include "common/tensor/tensor.h"
#include "worker/backend/backend.h"

namespace evergrad::worker {

// Names are Keras': "dense/kernel".
struct Variable {
  std::string name;
  tensor::Shape shape;
  std::string initializer;
  double initial_value = 0;  // constant
  double stddev = 0.05;      // truncated_normal
  std::uint64_t fan_in = 0, fan_out = 0;
  double l2 = 0;  // regulariser: l2 * sum of squares is added to the loss
  // In [0, 1): the variable is no weight but a moving average. Its "gradient" is what each step
  // measured, and an update moves it there by 1 - momentum of the way. Below 0: a weight.
  double momentum = -1;
  bool of_products = false;  // a kernel: in mixed precision products read it in 16 bits
  bool is_moving_average() const { return momentum >= 0; }
};

// In which elements a layer reads its inputs and writes its output, where the policy is one of
// mixed precision.
enum class Computes {
  kNarrow,    // as the policy says; at a loss in float32
  kProducts,  // likewise; at a loss it still reads 16 bits, and writes float32
  kFloat32,   // float32 whatever the policy: sums of products of what it reads
};

// What a layer computes with, for one batch.
struct Pass {
  Backend& backend;
  std::int64_t batch = 0;
  bool training = false;
  std::span<const std::uint64_t> key;  // what StepKey said of this step, in the backend's memory
};

// The spec of a layer, its inputs, and the shapes that common/layers infers of them.
struct LayerPlan {
  const config::LayerSpec& spec;
  const config::LayerInputs& inputs;
  const config::LayerShapes& shapes;
  absl::string_view keras;  // the name of the class that Keras prints: "Conv2D"

  const tensor::Shape& input() const { return inputs.shapes[0]; }
  const tensor::Shape& output() const { return shapes.output; }
};

class Layer {
 public:
  explicit Layer(const LayerPlan& plan);
  virtual ~Layer() = default;

  const std::string& name() const { return name_; }
  const std::string& type() const { return type_; }  // as Keras prints it: "Conv2D"
  const tensor::Shape& input_shape() const { return input_shape_; }
  const tensor::Shape& output_shape() const { return output_shape_; }
  const std::vector<Variable>& variables() const { return variables_; }
  // True when the output is the input's memory under another shape: the graph then calls neither
  // Forward nor Backward.
  virtual bool is_view() const { return false; }
  // A layer that draws: the key of its draws in the step of `dropout_key`. Absent: it draws
  // nothing.
  virtual std::optional<std::uint64_t> StepKey(std::uint64_t dropout_key) const;
  virtual Computes computes() const { return Computes::kNarrow; }
  // Before the first Forward of so many examples: takes the memory that it keeps between Forward
  // and Backward. ResourceExhausted.
  virtual absl::Status Reserve(Backend& backend, std::int64_t batch);

  // `weights` and `gradients` follow variables(); those of_products are of x's type, the others
  // float32. Forward writes all of y.
  virtual void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) = 0;
  // After Forward of the same batch in training. `dy` is the layer's to spoil. dx is overwritten;
  // empty when nobody needs it. Every gradient is overwritten.
  virtual void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y,
                        AnyOut dy, AnyOut dx, const std::vector<Out>& gradients) = 0;

  // True of a layer without variables that may have several inputs: the graph then calls these two
  // instead. Inputs may be one and the same.
  virtual bool merges() const { return false; }
  virtual void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y);
  // Overwrites the gradient of inputs[input].
  virtual void Unmerge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyIn y, AnyIn dy,
                       std::size_t input, AnyOut dx);

 private:
  const std::string name_, type_;
  const tensor::Shape input_shape_, output_shape_;
  std::vector<Variable> variables_;
};

// UserError naming the layer, the shapes and what was expected; with file:line:column when the spec
// knows it.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const config::LayerSpec& spec,
                                                 const config::LayerInputs& inputs);

// A type of common/layers, and what makes a layer of it from a plan that fits.
struct LayerMaker {
  absl::string_view type;
  std::unique_ptr<Layer> (*make)(const LayerPlan& plan);
};
template <class T>
std::unique_ptr<Layer> MakeOf(const LayerPlan& plan) {
  return std::make_unique<T>(plan);
}
// The makers of each family of common/layers/layer_families.inc.
#define EVERGRAD_LAYER_FAMILY(name) std::vector<LayerMaker> name##Makers();
#include "common/layers/layer_families.inc"
#undef EVERGRAD_LAYER_FAMILY

// A layer of several inputs: the calls for one are never made.
class MergeLayer : public Layer {
 public:
  using Layer::Layer;
  bool merges() const final { return true; }
  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) final;
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) final;
};

// "job.yaml:12:9: layer `conv1`: TEXT"
absl::Status LayerError(const config::LayerSpec& spec, absl::string_view text);
// One of config::Activations(); the shape rule has checked the name.
Activation ActivationOf(const config::LayerSpec& spec);
// Grows `memory` to `bytes`; what was there is lost. ResourceExhausted, naming the layer, when that
// cannot be.
absl::Status ReserveState(Backend& backend, const Layer& layer, std::size_t bytes, Memory* memory);
}  // namespace evergrad::worker
