// The seam between the model and what computes it: forward and backward of each primitive on contiguous float32 arrays, NHWC.
//
// cpu/ (oneDNN + Eigen) is the default; no_cuda/ says why CUDA is absent. One contract suite over every implementation.
// A Backend is used from one thread at a time (the compute thread). Plans (oneDNN primitives) are cached by shape.
// Bits: a function of inputs and shapes, the same on every call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

struct Conv2dShape {
  std::int64_t batch, in_h, in_w, in_c, out_h, out_w, filters, kernel_h, kernel_w, stride_h, stride_w;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;  // TensorFlow's `same` may pad more at the bottom and right
  friend auto operator<=>(const Conv2dShape&, const Conv2dShape&) = default;
};
struct PoolShape {
  std::int64_t batch, in_h, in_w, channels, out_h, out_w, pool_h, pool_w, stride_h, stride_w;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;
  friend auto operator<=>(const PoolShape&, const PoolShape&) = default;
};

enum class Activation { kLinear, kRelu, kTanh, kSigmoid, kSoftmax };

using In = std::span<const float>;
using Out = std::span<float>;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;          // "cpu (oneDNN 2.6, avx512_core)"

  // y[batch,out] = x[batch,in] * w[in,out] + b[out]; b may be empty.
  virtual void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In b, Out y) = 0;
  // dx may be empty (first layer). db empty when there is no bias. dw, db are overwritten.
  virtual void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In dy, Out dx, Out dw, Out db) = 0;

  // w is HWIO. b may be empty.
  virtual void Conv2dForward(const Conv2dShape& s, In x, In w, In b, Out y) = 0;
  virtual void Conv2dBackward(const Conv2dShape& s, In x, In w, In dy, Out dx, Out dw, Out db) = 0;

  // `argmax` [outputs] receives the flat input index of each maximum (first one on ties), for the backward pass.
  virtual void MaxPoolForward(const PoolShape& s, In x, Out y, std::span<std::int32_t> argmax) = 0;
  virtual void MaxPoolBackward(const PoolShape& s, In dy, std::span<const std::int32_t> argmax, Out dx) = 0;

  // Softmax is over the last dimension of `columns`. Backward uses the output y.
  virtual void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, In x, Out y) = 0;
  virtual void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, In y, In dy, Out dx) = 0;

  // y = x * mask / (1 - rate); mask from Philox by (key, element index): the same on every backend. Backward with dy for x.
  virtual void Dropout(double rate, std::uint64_t key, In x, Out y) = 0;
};

struct BackendOptions {
  std::string type = "auto";  // auto | cpu | cuda
  int threads = 1;            // sizes every pool
};
// InvalidArgument / Unimplemented naming the type: "cuda" where it was not built says so.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace evergrad::worker
