// The computation of a layer, forward and backward over one batch.
//
// common/layers defines the types of layers, their inputs, output shapes and variables. Here each
// family of types has a file with its computation. A layer has one input, or several (merges()),
// and one output. The graph holds weights and activations and passes them to the layer. Weights and
// activations are in the backend's memory, so a layer calls primitives and accesses no element. The
// state of a layer between Forward and Backward (such as the argmax of a pooling) is in the
// backend's memory, too. Only one thread at a time may use a layer. Shapes describe one example; a
// batch has its size as an additional first dimension.
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

// A variable, with the name that Keras gives it: "dense/kernel".
struct Variable {
  std::string name;
  tensor::Shape shape;
  std::string initializer;
  double initial_value = 0;  // of the initializer `constant`
  double stddev = 0.05;      // of the initializer `truncated_normal`
  std::uint64_t fan_in = 0, fan_out = 0;
  double l2 = 0;  // regularizer: l2 * sum of squares is added to the loss
  // If in [0, 1), the variable is a moving average. The "gradient" of a moving average is the value
  // that a step measured, and an update moves the variable towards this value by the fraction 1 -
  // momentum. A negative number means that the variable is a weight.
  double momentum = -1;
  bool of_products = false;  // true for a kernel: in mixed precision, products read it in 16 bits
  bool is_moving_average() const { return momentum >= 0; }
};

// The types of a layer's inputs and output in mixed precision. A layer is "at a loss" if a loss
// reads its output.
enum class Computes {
  kNarrow,    // the precision's 16-bit type; float32 at a loss
  kProducts,  // the 16-bit type; a layer at a loss reads 16 bits and writes float32
  kFloat32,   // always float32, because the layer sums products of its inputs
};

// The context of a layer's computation for one batch.
struct Pass {
  Backend& backend;
  std::int64_t batch = 0;
  bool training = false;
  // The result of StepKey for this step, in the backend's memory.
  std::span<const std::uint64_t> key;
};

// The spec of a layer, its inputs, and the shapes that common/layers infers from them.
struct LayerPlan {
  const config::LayerSpec& spec;
  const config::LayerInputs& inputs;
  const config::LayerShapes& shapes;
  absl::string_view keras;  // the class name that Keras prints: "Conv2D"

  const tensor::Shape& input() const { return inputs.shapes[0]; }
  const tensor::Shape& output() const { return shapes.output; }
};

class Layer {
 public:
  explicit Layer(const LayerPlan& plan);
  virtual ~Layer() = default;

  const std::string& name() const { return name_; }
  const std::string& type() const { return type_; }  // as Keras prints it: "Conv2D"
  const tensor::Shape& output_shape() const { return output_shape_; }
  const std::vector<Variable>& variables() const { return variables_; }
  // Returns whether the output is the input's memory with another shape. The graph then calls
  // neither Forward nor Backward.
  virtual bool is_view() const { return false; }
  // Returns the key of the layer's random numbers in the step of `dropout_key`, or nullopt for a
  // layer that draws none.
  virtual std::optional<std::uint64_t> StepKey(std::uint64_t dropout_key) const;
  virtual Computes computes() const { return Computes::kNarrow; }
  // Allocates the memory that is kept between Forward and Backward. The graph calls Reserve before
  // the first Forward of `batch` examples. Returns ResourceExhausted if out of memory.
  virtual absl::Status Reserve(Backend& backend, std::int64_t batch);

  // `weights` and `gradients` have the order of variables(). Variables with of_products have the
  // type of x, other variables are float32. Forward writes all of y.
  virtual void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) = 0;
  // The graph calls Backward after Forward of the same batch in training. `dy` may be overwritten.
  // `dx` is overwritten, or empty if no layer needs it. Every gradient is overwritten.
  virtual void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y,
                        AnyOut dy, AnyOut dx, const std::vector<Out>& gradients) = 0;

  // Returns whether the layer may have several inputs. Such a layer has no variables. The graph
  // calls Merge and Unmerge instead of Forward and Backward. Inputs may be identical.
  virtual bool merges() const { return false; }
  virtual void Merge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyOut y);
  // Overwrites the gradient of inputs[input].
  virtual void Unmerge(const Pass& pass, const std::vector<AnyIn>& inputs, AnyIn y, AnyIn dy,
                       std::size_t input, AnyOut dx);

 private:
  const std::string name_, type_;
  const tensor::Shape output_shape_;
  std::vector<Variable> variables_;
};

// Returns the layer, or a UserError that names the layer, the shapes and the expected value, with
// file:line:column if the spec contains it.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const config::LayerSpec& spec,
                                                 const config::LayerInputs& inputs);

// A type of common/layers, and the function that creates a layer of this type from a valid plan.
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

// A layer with several inputs; Forward and Backward are never called.
class MergeLayer : public Layer {
 public:
  using Layer::Layer;
  bool merges() const final { return true; }
  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) final;
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) final;
};

// Returns a user error "job.yaml:12:9: TEXT", or "TEXT" if `where` names no file.
absl::Status ErrorAt(const config::Location& where, absl::string_view text);
// Returns "job.yaml:12:9: layer `conv1`: TEXT".
absl::Status LayerError(const config::LayerSpec& spec, absl::string_view text);
// Returns the activation of the spec. The name must be one of config::Activations() (EG_CHECK).
Activation ActivationOf(const config::LayerSpec& spec);
// Grows `memory` to `bytes` and loses its contents. If out of memory, returns ResourceExhausted
// with the layer's name.
absl::Status ReserveState(Backend& backend, const Layer& layer, std::size_t bytes, Memory* memory);
}  // namespace evergrad::worker
