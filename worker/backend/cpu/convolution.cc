#include "worker/backend/cpu/convolution.h"

#include <cstring>
#include <optional>
#include <unordered_map>

#include "worker/backend/cpu/matmul.h"

namespace evergrad::worker::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

memory::desc Desc(memory::dims dims, Tag tag, Element type = Element::kFloat32) {
  return {std::move(dims), ToDnnl(type), tag};
}

// A tensor of the interface, and the same tensor in the layout of a primitive. If the layouts
// agree, both tensors share one memory. Otherwise there are two memories and a reorder.
class Operand {
 public:
  Operand() = default;
  Operand(const memory::desc& ours, const memory::desc& wanted, const dnnl::engine& engine)
      : ours_(ours, engine, nullptr) {
    if (ours != wanted) wanted_.emplace(wanted, engine);
  }
  // Returns the memory to pass to the primitive. oneDNN takes no pointers to const, but it only
  // reads the inputs.
  const memory& at_primitive() const { return wanted_ ? *wanted_ : ours_; }
  void Load(AnyIn values, dnnl::stream& stream) {
    ours_.set_data_handle(const_cast<void*>(values.data()));
    if (wanted_) Reorder(load_, ours_, *wanted_, stream);
  }
  void Aim(AnyOut values) { ours_.set_data_handle(values.data()); }
  void Store(dnnl::stream& stream) {
    if (wanted_) Reorder(store_, *wanted_, ours_, stream);
  }

 private:
  static void Reorder(std::optional<dnnl::reorder>& reorder, memory& from, memory& to,
                      dnnl::stream& stream) {
    if (!reorder) reorder.emplace(from, to);
    reorder->execute(stream, from, to);
  }
  memory ours_;
  std::optional<memory> wanted_;
  std::optional<dnnl::reorder> load_, store_;
};

// Describes an HWIO kernel to oneDNN, whose logical order is (out, in, h, w).
memory::desc KernelDesc(const Conv2dShape& s, Element type) {
  return Desc({s.filters, s.in_c, s.kernel_h, s.kernel_w}, Tag::hwio, type);
}

// NHWC with one channel equals NCHW byte for byte, and NHWC with 16 channels equals nChw16c. For
// these layouts oneDNN has AVX-512 kernels for few input channels, which are twice as fast. A first
// convolution of 128 images of 28x28x1 to 16 channels takes 0.27 ms instead of 0.53 ms.
memory::desc InputDesc(const Conv2dShape& s, Element type, bool first_layer) {
  return Desc({s.batch, s.in_c, s.in_h, s.in_w}, first_layer ? Tag::nchw : Tag::nhwc, type);
}
memory::desc OutputDesc(const Conv2dShape& s, Element type, bool first_layer) {
  return Desc({s.batch, s.filters, s.out_h, s.out_w}, first_layer ? Tag::nChw16c : Tag::nhwc, type);
}

dnnl::convolution_forward::primitive_desc ForwardDesc(const Conv2dShape& s, Element type,
                                                      bool with_bias, bool with_relu,
                                                      bool first_layer,
                                                      const dnnl::engine& engine) {
  const auto b = with_bias ? Desc({s.filters}, Tag::x) : memory::desc();
  const dnnl::convolution_forward::desc desc(
      dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct,
      InputDesc(s, type, first_layer),
      Desc({s.filters, s.in_c, s.kernel_h, s.kernel_w}, Tag::any, type), b,
      OutputDesc(s, type, first_layer), {s.stride_h, s.stride_w}, {s.pad_top, s.pad_left},
      {s.pad_bottom, s.pad_right});
  dnnl::primitive_attr attributes;
  if (with_relu) {
    dnnl::post_ops relu;
    relu.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(relu);
  }
  return {desc, attributes, engine};
}

// Returns whether oneDNN has special kernels for a first layer (InputDesc) on this CPU. Without
// them, oneDNN would use reference code that is a hundred times slower.
bool IsFirstLayer(const Conv2dShape& s, Element type, const dnnl::engine& engine) {
  return type == Element::kFloat32 && s.in_c == 1 && s.filters == 16 &&
         std::strncmp(ForwardDesc(s, type, true, true, true, engine).impl_info_str(), "jit", 3) ==
             0;
}

}  // namespace

struct Convolution::Pass {
  dnnl::primitive primitive;
  Operand data, weights, bias, output;  // `data` is x or dx, `output` is y or dy
};

Convolution::~Convolution() = default;

Convolution::Convolution(const Conv2dShape& s, Element type, bool with_bias, bool with_relu,
                         const dnnl::engine& engine, dnnl::stream& stream)
    : shape_(s),
      type_(type),
      with_bias_(with_bias),
      first_layer_(IsFirstLayer(s, type, engine)),
      engine_(engine),
      stream_(stream) {
  forward_desc_ = ForwardDesc(s, type, with_bias, with_relu, first_layer_, engine);
}

std::unique_ptr<Convolution::Pass> Convolution::MakeForward() {
  auto pass = std::make_unique<Pass>();
  pass->primitive = dnnl::convolution_forward(forward_desc_);
  pass->data = Operand(InputDesc(shape_, type_, first_layer_), forward_desc_.src_desc(), engine_);
  pass->weights = Operand(KernelDesc(shape_, type_), forward_desc_.weights_desc(), engine_);
  if (with_bias_)
    pass->bias = Operand(Desc({shape_.filters}, Tag::x), forward_desc_.bias_desc(), engine_);
  pass->output =
      Operand(OutputDesc(shape_, type_, first_layer_), forward_desc_.dst_desc(), engine_);
  return pass;
}

std::unique_ptr<Convolution::Pass> Convolution::MakeBackwardData() {
  const Conv2dShape& s = shape_;
  // oneDNN's kernels of a first layer have no backward pass by data.
  const dnnl::convolution_backward_data::desc desc(
      dnnl::algorithm::convolution_direct, InputDesc(s, type_, false),
      Desc({s.filters, s.in_c, s.kernel_h, s.kernel_w}, Tag::any, type_),
      OutputDesc(s, type_, false), {s.stride_h, s.stride_w}, {s.pad_top, s.pad_left},
      {s.pad_bottom, s.pad_right});
  const dnnl::convolution_backward_data::primitive_desc made(
      desc, engine_, ForwardDesc(s, type_, with_bias_, false, false, engine_));
  auto pass = std::make_unique<Pass>();
  pass->primitive = dnnl::convolution_backward_data(made);
  pass->data = Operand(InputDesc(s, type_, false), made.diff_src_desc(), engine_);
  pass->weights = Operand(KernelDesc(s, type_), made.weights_desc(), engine_);
  pass->output = Operand(OutputDesc(s, type_, false), made.diff_dst_desc(), engine_);
  return pass;
}

std::unique_ptr<Convolution::Pass> Convolution::MakeBackwardWeights() {
  const Conv2dShape& s = shape_;
  const dnnl::convolution_backward_weights::desc desc(
      dnnl::algorithm::convolution_direct, InputDesc(s, type_, first_layer_),
      Desc({s.filters, s.in_c, s.kernel_h, s.kernel_w}, Tag::any),
      with_bias_ ? Desc({s.filters}, Tag::x) : memory::desc(), OutputDesc(s, type_, first_layer_),
      {s.stride_h, s.stride_w}, {s.pad_top, s.pad_left}, {s.pad_bottom, s.pad_right});
  const dnnl::convolution_backward_weights::primitive_desc made(desc, engine_, forward_desc_);
  auto pass = std::make_unique<Pass>();
  pass->primitive = dnnl::convolution_backward_weights(made);
  pass->data = Operand(InputDesc(s, type_, first_layer_), made.src_desc(), engine_);
  pass->weights = Operand(KernelDesc(s, Element::kFloat32), made.diff_weights_desc(), engine_);
  if (with_bias_) pass->bias = Operand(Desc({s.filters}, Tag::x), made.diff_bias_desc(), engine_);
  pass->output = Operand(OutputDesc(s, type_, first_layer_), made.diff_dst_desc(), engine_);
  return pass;
}

void Convolution::Forward(AnyIn x, AnyIn w, In b, AnyOut y) {
  if (!forward_) forward_ = MakeForward();
  Pass& pass = *forward_;
  pass.data.Load(x, stream_);
  pass.weights.Load(w, stream_);
  pass.output.Aim(y);
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, pass.data.at_primitive()},
                                               {DNNL_ARG_WEIGHTS, pass.weights.at_primitive()},
                                               {DNNL_ARG_DST, pass.output.at_primitive()}};
  if (with_bias_) {
    pass.bias.Load(b, stream_);
    arguments.emplace(DNNL_ARG_BIAS, pass.bias.at_primitive());
  }
  pass.primitive.execute(stream_, arguments);
  pass.output.Store(stream_);
}

void Convolution::BackwardData(AnyIn w, AnyIn dy, AnyOut dx) {
  if (!backward_data_) backward_data_ = MakeBackwardData();
  Pass& pass = *backward_data_;
  pass.weights.Load(w, stream_);
  pass.output.Load(dy, stream_);
  pass.data.Aim(dx);
  pass.primitive.execute(stream_, {{DNNL_ARG_DIFF_DST, pass.output.at_primitive()},
                                   {DNNL_ARG_WEIGHTS, pass.weights.at_primitive()},
                                   {DNNL_ARG_DIFF_SRC, pass.data.at_primitive()}});
  pass.data.Store(stream_);
}

void Convolution::BackwardWeights(AnyIn x, AnyIn dy, Out dw, Out db) {
  if (!backward_weights_) backward_weights_ = MakeBackwardWeights();
  Pass& pass = *backward_weights_;
  pass.data.Load(x, stream_);
  pass.output.Load(dy, stream_);
  pass.weights.Aim(dw);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, pass.data.at_primitive()},
      {DNNL_ARG_DIFF_DST, pass.output.at_primitive()},
      {DNNL_ARG_DIFF_WEIGHTS, pass.weights.at_primitive()}};
  if (with_bias_) {
    pass.bias.Aim(db);
    arguments.emplace(DNNL_ARG_DIFF_BIAS, pass.bias.at_primitive());
  }
  pass.primitive.execute(stream_, arguments);
  pass.weights.Store(stream_);
  if (with_bias_) pass.bias.Store(stream_);
}

}  // namespace evergrad::worker::cpu
