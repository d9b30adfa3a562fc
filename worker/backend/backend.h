// The seam between the model and what computes it: forward and backward of each primitive on contiguous float32 arrays, NHWC.
//
// cpu/ (oneDNN + Eigen) is in every build; cuda/ loads libevergrad_cuda.so, or says why it does not. One contract suite over every implementation.
// A Backend is used from one thread at a time (the compute thread). Plans (oneDNN primitives) are cached by shape.
// Bits: a function of inputs, shapes and `threads`, the same on every call. Sizes are checked by the caller (Graph): each span
// has exactly the elements that its shape says, and no shape exceeds kElementsMax. Outputs never alias inputs unless said.
// NaN and Inf are carried through every primitive, so that the loss shows them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace evergrad::worker {

inline constexpr std::int64_t kElementsMax = (std::int64_t{1} << 31) - 1;  // of one array: argmax is 32-bit, and so are oneDNN's kernels

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
  virtual std::string name() const = 0;  // "cpu (oneDNN 2.6, avx512_core)"

  // A primitive that could not compute (no memory, a shape that the library refuses) leaves its outputs unspecified and the
  // first such error here. Returns it and forgets it; OK when there is none. Ask once per step, before the results are used.
  virtual absl::Status TakeError() = 0;

  // y[batch,out] = activation(x[batch,in] * w[in,out] + b[out]); b may be empty.
  virtual void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In b, Activation activation, Out y) = 0;
  // dx may be empty (first layer). db empty when there is no bias. dw, db are overwritten.
  virtual void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In dy, Out dx, Out dw, Out db) = 0;

  // w is HWIO. b may be empty. y = activation(conv + b).
  virtual void Conv2dForward(const Conv2dShape& s, In x, In w, In b, Activation activation, Out y) = 0;
  virtual void Conv2dBackward(const Conv2dShape& s, In x, In w, In dy, Out dx, Out dw, Out db) = 0;

  // `argmax` [outputs] receives the flat input index of each maximum (first one on ties; the first NaN, if there is one), for the
  // backward pass. Padding never wins.
  virtual void MaxPoolForward(const PoolShape& s, In x, Out y, std::span<std::int32_t> argmax) = 0;
  virtual void MaxPoolBackward(const PoolShape& s, In dy, std::span<const std::int32_t> argmax, Out dx) = 0;

  // Softmax is over the last dimension of `columns`. Backward uses the output y. In place is allowed: y == x, dx == dy.
  virtual void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, In x, Out y) = 0;
  virtual void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, In y, In dy, Out dx) = 0;

  // y = x * mask / (1 - rate); mask from Philox by (key, element index): the same on every backend. Backward with dy for x.
  // An element is kept where Uniform(key, index) >= rate. In place is allowed. 0 <= rate < 1.
  virtual void Dropout(double rate, std::uint64_t key, In x, Out y) = 0;

  // Of `rows` vectors of `channels` elements, each channel by its own mean and variance (Ioffe and Szegedy, 2015, algorithms 1 and 2):
  // y = gamma (x - mean) / sqrt(variance + epsilon) + beta. The first computes mean and variance of these rows (the sum of squares is divided by
  // rows); the second is told them. gamma and beta [channels] may be empty: 1 and 0. y must not be x.
  virtual void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In beta, Out mean, Out variance,
                                Out y) = 0;
  virtual void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In beta, In mean, In variance,
                                  Out y) = 0;
  // Of BatchNormForward, through mean and variance. dx may be empty; dgamma and dbeta are where gamma and beta are, and are overwritten.
  virtual void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In mean, In variance, In dy, Out dx,
                                 Out dgamma, Out dbeta) = 0;

  // Each row by its own mean and variance (Ba, Kiros and Hinton, 2016), which the forward pass leaves in mean and variance [rows] for the backward
  // pass; gamma and beta are [columns]. The rest is as above.
  virtual void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, In x, In gamma, In beta, Out mean, Out variance,
                                Out y) = 0;
  virtual void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, In x, In gamma, In mean, In variance, In dy, Out dx,
                                 Out dgamma, Out dbeta) = 0;

  // y[batch, channels] = mean over the positions of x[batch, positions, channels]; dx spreads dy evenly.
  virtual void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions, std::int64_t channels, In x, Out y) = 0;
  virtual void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions, std::int64_t channels, In dy, Out dx) = 0;
};

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | gpu | gpu:N
  int threads = 1;              // sizes every pool
  // Where `threads` is the number of processors that this process may use (and above 1): the thread that makes the backend, which is
  // then the one that computes, and its pool are bound to one each. Else a server on the same host wakes up where a part of the pool
  // spins, the scheduler puts two parts on one processor, and every primitive waits for both.
  bool bind = false;
  std::string cuda_library = {};  // "": libevergrad_cuda.so beside the executable
};
// UserError naming the device: no such name, or a GPU that cannot be had, with the reason.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

// First line of a daemon's main(), before any thread: PrepareThreadPools(std::getenv("OMP_WAIT_POLICY"), argv). Lets the pools
// that compute sleep instead of spin (longer than between two primitives), or two workers on one host take each other's cores.
// libgomp reads the variable when it is loaded, before main(), so when it is not set this sets it (and GOMP_SPINCOUNT, where that is
// not set) and executes the program again: same pid,
// arguments and open files. Returns when it is set (by the user, a supervisor or the first pass), or when executing failed,
// which costs only speed.
void PrepareThreadPools(const char* wait_policy, char** argv);

}  // namespace evergrad::worker
