// A layer: the shape that it makes of its input's, its variables, and forward and backward over one
// batch.
//
// One file per type; MakeLayer knows them all. A layer takes one input or several (merges()) and
// gives one output. It holds no weights and no activations: the graph hands them in, and they are
// in the backend's memory: a layer asks for primitives and looks at nothing. What it keeps between
// Forward and Backward (pooling's argmax) is there too, and makes it usable from one thread at a
// time. Shapes are of one example; a batch puts its size in front.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
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

class Layer {
 public:
  Layer(const config::LayerSpec& spec, absl::string_view type, tensor::Shape input,
        tensor::Shape output)
      : name_(spec.name),
        type_(type),
        input_shape_(std::move(input)),
        output_shape_(std::move(output)) {}
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

 protected:
  void AddVariable(absl::string_view suffix, tensor::Shape shape,
                   const config::InitializerSpec& initializer, std::uint64_t fan_in,
                   std::uint64_t fan_out, double l2);
  // "kernel", which products read.
  void AddKernel(tensor::Shape shape, const config::InitializerSpec& initializer,
                 std::uint64_t fan_in, std::uint64_t fan_out, double l2);
  // Of `channels` numbers, which steps move by `momentum` (Variable::momentum).
  void AddMovingAverage(absl::string_view suffix, std::uint64_t channels,
                        const config::InitializerSpec& initializer, double momentum);

 private:
  const std::string name_, type_;
  const tensor::Shape input_shape_, output_shape_;
  std::vector<Variable> variables_;
};

// UserError naming the layer, the shapes and what was expected; with file:line:column when the spec
// knows it. Of every type but embedding (embedding.h), which needs its table.
absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const config::LayerSpec& spec,
                                                 const std::vector<tensor::Shape>& inputs);

// The maker of each type; MakeLayer's table.
absl::StatusOr<std::unique_ptr<Layer>> MakeDense(const config::LayerSpec& spec,
                                                 const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const config::LayerSpec& spec,
                                                  const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPooling2d(const config::LayerSpec& spec,
                                                        const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeGlobalAveragePooling2d(const config::LayerSpec& spec,
                                                                  const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNormalization(const config::LayerSpec& spec,
                                                              const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNormalization(const config::LayerSpec& spec,
                                                              const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeFlatten(const config::LayerSpec& spec,
                                                   const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeActivation(const config::LayerSpec& spec,
                                                      const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const config::LayerSpec& spec,
                                                   const tensor::Shape& input);
absl::StatusOr<std::unique_ptr<Layer>> MakeConcatenate(const config::LayerSpec& spec,
                                                       const std::vector<tensor::Shape>& inputs);
absl::StatusOr<std::unique_ptr<Layer>> MakeAdd(const config::LayerSpec& spec,
                                               const std::vector<tensor::Shape>& inputs);
absl::StatusOr<std::unique_ptr<Layer>> MakeDot(const config::LayerSpec& spec,
                                               const std::vector<tensor::Shape>& inputs);
absl::StatusOr<std::unique_ptr<Layer>> MakeFactorizationMachine(
    const config::LayerSpec& spec, const std::vector<tensor::Shape>& inputs);

// A layer of several inputs: the calls for one are never made.
class MergeLayer : public Layer {
 public:
  using Layer::Layer;
  bool merges() const final { return true; }
  void Forward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyOut y) final;
  void Backward(const Pass& pass, const std::vector<AnyIn>& weights, AnyIn x, AnyIn y, AnyOut dy,
                AnyOut dx, const std::vector<Out>& gradients) final;
};

// "(3, 4), (4)"
std::string ShapeList(const std::vector<tensor::Shape>& shapes);
// "job.yaml:12:9: layer `conv1`: TEXT"
absl::Status LayerError(const config::LayerSpec& spec, absl::string_view text);
// linear | relu | tanh | sigmoid | softmax; LayerError otherwise.
absl::StatusOr<Activation> ParseActivation(const config::LayerSpec& spec);
// Grows `memory` to `bytes`; what was there is lost. ResourceExhausted, naming the layer, when that
// cannot be.
absl::Status ReserveState(Backend& backend, const Layer& layer, std::size_t bytes, Memory* memory);
// Elements of one example, refused above kElementsMax.
absl::StatusOr<tensor::Shape> CheckedShape(const config::LayerSpec& spec, absl::string_view what,
                                           std::vector<std::uint64_t> dims);

// The axis of a sliding window: output size and padding as TensorFlow computes them.
struct WindowAxis {
  std::int64_t out = 0, pad_before = 0, pad_after = 0;
};
// `valid` gives floor((in - window) / stride) + 1; `same` gives ceil(in / stride), padding more at
// the end. window <= in for `valid`.
WindowAxis SlideWindow(std::int64_t in, std::int64_t window, std::int64_t stride, bool same);
// LayerError unless spec.padding is valid or same.
absl::StatusOr<bool> PaddingIsSame(const config::LayerSpec& spec);

}  // namespace evergrad::worker
