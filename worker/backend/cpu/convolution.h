// One convolution shape as three oneDNN primitives: forward, backward by data, backward by weights.
// Each primitive is created when it is first needed.
//
// Activations keep the layout of the interface, NHWC. oneDNN has vector kernels for this layout.
// Weights are small, so every call reorders them from HWIO into the layout that each primitive
// prefers. Weight gradients are reordered back to HWIO. x, y and w may have 16 bits; bias and
// weight gradients are float32.
#pragma once

#include <memory>

#include "dnnl.hpp"
#include "worker/backend/backend.h"

namespace evergrad::worker::cpu {

// The methods throw dnnl::error, which the backend catches. Not thread-safe. `engine` and `stream`
// outlive the object.
class Convolution {
 public:
  Convolution(const Conv2dShape& shape, Element type, bool with_bias, bool with_relu,
              const dnnl::engine& engine, dnnl::stream& stream);
  ~Convolution();

  void Forward(AnyIn x, AnyIn w, In b, AnyOut y);
  void BackwardData(AnyIn w, AnyIn dy, AnyOut dx);
  void BackwardWeights(AnyIn x, AnyIn dy, Out dw, Out db);

 private:
  struct Pass;
  std::unique_ptr<Pass> MakeForward();
  std::unique_ptr<Pass> MakeBackwardData();
  std::unique_ptr<Pass> MakeBackwardWeights();

  const Conv2dShape shape_;
  const Element type_;
  const bool with_bias_;
  const bool first_layer_;  // one input channel, for which oneDNN has special kernels
  const dnnl::engine& engine_;
  dnnl::stream& stream_;
  // The descriptor is also the hint for the backward primitives.
  dnnl::convolution_forward::primitive_desc forward_desc_;
  std::unique_ptr<Pass> forward_, backward_data_, backward_weights_;
};

}  // namespace evergrad::worker::cpu
