// The interface between a model and the device that computes it: memory, copies, and the forward
// and backward pass of each primitive. Arrays are contiguous, and images are NHWC.
//
// Elements are float32. Activations, their gradients, and the weights of dense layers and
// convolutions may have 16 bits (AnyIn, AnyOut). Primitives then read and write 16 bits, but
// compute, and above all add, in float32 or wider. All 16-bit operands of one call have the same
// type unless stated. In and Out, used for weight gradients, statistics and losses, are always
// float32.
//
// cpu/ (oneDNN + Eigen) is in every build. cuda/ loads libevergrad_cuda.so, or reports why the
// library cannot be loaded. One suite of contract tests covers all backends.
//
// Memory. A backend owns the memory on which it computes. Every span passed to a primitive lies in
// memory of this backend (Allocate), and so do the structs that a primitive fills for the host
// (LossResult, a sum, a flag). If host_memory() is true, any host memory is allowed. Elements are
// aligned to their type; arrays need no larger alignment. Host code may access a backend's memory
// only if host_memory() is true; otherwise it copies (Upload, Download).
//
// Order. A primitive may return before it has computed. There are three queues: kCompute for
// primitives, kIn and kOut for copies. Each queue works in the order of the calls. Only marks
// (QueueMark) make a queue wait for another queue, or the host wait for a queue:
//
//   kIn       upload ─▶ Record(there)
//   kCompute  Await(there) ─▶ primitives … layer 2 back ─▶ Record(made) ─▶ layer 1 back …
//   kOut      Await(made) ─▶ download ─▶ Record(out)
//   host      … BeginStep ─▶ all calls of kCompute ─▶ EndStep ─▶ all calls of kOut ─▶
//             Finish ─▶ Wait(out)
//
// Step. BeginStep … EndStep encloses the primitives of one step, which a backend may record once
// and run again as a whole. Inside a step only primitives, Enter, and Record and Await of kCompute
// are allowed: no allocation, no copy, no query. Two steps of one signature differ only in the
// contents of memory: batch, weights, dropout keys. Numeric arguments of primitives are constants
// of the model and of the batch size. Finish gives the host the results of a step in one small
// piece; this is the host's only wait for kCompute.
//
// Errors. A primitive that fails (out of memory, a shape that the library refuses) leaves its
// outputs unspecified. The backend stores the first such error with the layer (Enter) and the
// primitive. After an error, primitives do nothing until Finish or TakeError has returned and
// cleared the error, so that no unspecified index is used. Errors of the caller (sizes, aliasing)
// are not detected here. worker/graph checks that each span has exactly the elements of its shape,
// and that no shape exceeds kElementsMax.
//
// Aliasing. Outputs overlap neither inputs nor each other unless stated. Outputs are overwritten
// unless stated. An empty output, if allowed, is not computed.
//
// Bits. Results are a function of inputs, shapes and `threads`, and the same on every call. Sums
// with a stated order are computed in that order. Every primitive propagates NaN and Inf, so that
// the loss shows them.
//
// Threads. One thread at a time, the compute thread, uses a backend: it allocates, computes and
// frees memory. HostMemory may be used on any thread. HostMemory and its buffers may outlive the
// backend; all other objects of a backend must not.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/layers/kinds.h"
#include "common/tensor/tensor.h"

namespace evergrad::worker {

// The largest number of elements in an array, because argmax and oneDNN have 32-bit indices.
inline constexpr std::int64_t kElementsMax = (std::int64_t{1} << 31) - 1;

using In = std::span<const float>;
using Out = std::span<float>;

// The type of an element in memory; the numbers are those of tensor::WireType.
enum class Element : std::uint8_t { kFloat32 = 1, kFloat16 = 3, kBFloat16 = 4 };
constexpr std::size_t BytesOf(Element e) { return e == Element::kFloat32 ? 4 : 2; }
constexpr const char* NameOf(Element e) {
  return e == Element::kFloat32 ? "float32" : e == Element::kFloat16 ? "float16" : "bfloat16";
}

// A span of elements of any of these types, to which a span of float32 converts implicitly.
template <typename Void, typename Float>
class AnySpan {
 public:
  AnySpan() = default;
  AnySpan(Void* data, std::size_t size, Element type) : data_(data), size_(size), type_(type) {}
  template <typename Range>
  requires std::convertible_to<Range, std::span<Float>> AnySpan(
      Range&&
          range) {  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
    const std::span<Float> span(range);
    data_ = span.data(), size_ = span.size();
  }
  template <typename OtherVoid, typename OtherFloat>
  requires(std::convertible_to<OtherVoid*, Void*> && !std::same_as<OtherVoid, Void>)
      AnySpan(const AnySpan<OtherVoid, OtherFloat>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), size_(other.size()), type_(other.type()) {}

  Void* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t size_bytes() const { return size_ * BytesOf(type_); }
  bool empty() const { return size_ == 0; }
  Element type() const { return type_; }
  bool is_float32() const { return type_ == Element::kFloat32; }
  // The type must be float32 (EG_CHECK).
  std::span<Float> floats() const {
    EG_CHECK(is_float32());
    return {static_cast<Float*>(data_), size_};
  }
  AnySpan subspan(std::size_t begin, std::size_t count) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return {static_cast<Byte*>(data_) + begin * BytesOf(type_), count, type_};
  }

 private:
  Void* data_ = nullptr;
  std::size_t size_ = 0;
  Element type_ = Element::kFloat32;
};
using AnyIn = AnySpan<const void, const float>;
using AnyOut = AnySpan<void, float>;

// The precision of a job's steps (`training.precision`; the names are Keras').
//   kTf32            float32; products may round their operands to TF32 (10 bits of mantissa)
//   kMixedBFloat16,  activations, their gradients, and the weights that products read have 16 bits;
//   kMixedFloat16    stored weights, weight gradients, statistics and losses are float32
enum class Precision { kFloat32, kTf32, kMixedBFloat16, kMixedFloat16 };
constexpr Element ElementOf(Precision p) {
  return p == Precision::kMixedBFloat16  ? Element::kBFloat16
         : p == Precision::kMixedFloat16 ? Element::kFloat16
                                         : Element::kFloat32;
}

// A piece of a backend's memory, uninitialized. The destructor returns the memory to the backend,
// even while queued work still uses it.
class Memory {
 public:
  Memory() = default;
  explicit Memory(tensor::AlignedBuffer buffer) : buffer_(std::move(buffer)) {}
  std::size_t bytes() const { return buffer_.size(); }
  // Returns the whole piece as addresses that the host may access only if host_memory() is true.
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(buffer_.data()), buffer_.size() / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(buffer_.data()), buffer_.size() / sizeof(T)};
  }

 private:
  tensor::AlignedBuffer buffer_;  // aligned to 64 bytes; its destructor returns it to the backend
};

// Host memory that Upload and Download use without an intermediate copy; for a device it is
// page-locked. Thread-safe. The buffers share the ownership of the object.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Freed memory is kept for the next request of the same size, so a step may call this method.
  // Returns ResourceExhausted if out of memory.
  virtual absl::StatusOr<tensor::AlignedBuffer> Allocate(std::size_t bytes) = 0;
};

// The use of memory, in bytes.
struct MemoryUse {
  std::uint64_t used = 0, peak = 0;  // allocated by Allocate: now, and the maximum so far
  // Bytes taken from the device or the system: `used`, and memory kept for reuse.
  std::uint64_t reserved = 0;
  std::uint64_t free = 0;  // free memory of the device or the system; 0 if unknown
  // Fragmentation: the part of the memory kept for reuse that is outside its largest piece.
  double fragmentation = 0;
};

// The measurements of a device over the steps so far, taken with the device's own events. Times are
// sums in seconds over the `measured` steps.
struct DeviceUse {
  std::string name;
  MemoryUse memory;
  std::uint64_t measured = 0;
  double in = 0, out = 0;  // time of copies, with the time in which the host submits them
  // Bytes uploaded so far, and the part of them that the compute thread had to copy first.
  std::uint64_t in_bytes = 0, staged_bytes = 0;
  double kernels = 0;  // time from a step's first kernel to its last, without `stalled`
  double stalled = 0;  // time in which kCompute waits for copies within the step
  std::optional<double> utilization;  // 0 to 1, the driver's last sample
  // The number of steps, by the way in which they were submitted.
  std::uint64_t eager = 0, captures = 0, replays = 0;
  // The number of captures after the first one of a shape, by reason.
  std::map<std::string, std::uint64_t> recaptures;
  // `crowded` is the number of steps that ran eagerly because of the graph limit, and `graphs` is
  // the number of graphs that are kept now.
  std::uint64_t crowded = 0, graphs = 0;
};

enum class DeviceQueue { kCompute, kIn, kOut };
inline constexpr int kQueues = 3;

// A point in the work of a queue. A mark is created once and recorded again in each step.
class QueueMark {
 public:
  virtual ~QueueMark() = default;
};

// The phase of the step to which the following work belongs, for errors and profiles.
enum class Phase { kForward, kLoss, kBackward, kFinish };

struct Conv2dShape {
  std::int64_t batch, in_h, in_w, in_c, out_h, out_w, filters, kernel_h, kernel_w, stride_h,
      stride_w;
  // With TensorFlow's `same` padding, the bottom and right may have one more row or column than the
  // top and left.
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;
  friend auto operator<=>(const Conv2dShape&, const Conv2dShape&) = default;
};
struct PoolShape {
  std::int64_t batch, in_h, in_w, channels, out_h, out_w, pool_h, pool_w, stride_h, stride_w;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;
  friend auto operator<=>(const PoolShape&, const PoolShape&) = default;
};

using config::Activation;

using config::Combiner;  // combines the rows of an example's ids
// The position of an id without a row. Such an id reads zeros, is not part of a bag, and has no
// gradient.
inline constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();
struct EmbeddingShape {
  std::int64_t batch, dimension;
  std::span<const std::int64_t> widths;  // ids per example in each input (host memory)
  Combiner combiner;
};

using config::LossType;
// A loss over an output of `rows` x `columns` per example. The loss of an example is the mean over
// its rows (sparse categorical) or over its elements (the others), as in Keras.
struct Loss {
  LossType type = LossType::kMeanSquaredError;
  bool from_logits = false;
  bool accuracy = false;  // count correct examples
  std::int64_t rows = 1, columns = 1;

  std::int64_t label_elements() const {
    return type == LossType::kSparseCategoricalCrossentropy ? rows : rows * columns;
  }
};
struct LossResult {
  double sum;            // sum over examples; unspecified after a bad label
  std::int64_t correct;  // number of correct examples; 0 unless `accuracy`
  // The position in `labels` of the first label that is not a class, -1 if there is none. A binary
  // label must be in [0, 1], so NaN is bad, too.
  std::int64_t bad_label;
  double bad_value;  // the value of the bad label
};

// The number of thresholds of Keras' AUC(num_thresholds=200): 0, 1/199, …, 1. They delimit kAucBins
// bins.
inline constexpr int kAucThresholds = 200;
inline constexpr int kAucBins = kAucThresholds - 1;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu (oneDNN 2.6, avx512_core)"

  // ---- Memory

  // Returns whether the host may access this backend's memory. If so, primitives accept any host
  // memory, and primitives and copies are complete when they return. A mark has then passed as soon
  // as it is recorded.
  virtual bool host_memory() const = 0;
  // Allocates at least 1 byte. Returns ResourceExhausted: "out of memory: what=WHAT bytes=ASKED
  // free=FREE". Must not be called within a step.
  virtual absl::StatusOr<Memory> Allocate(std::size_t bytes, absl::string_view what) = 0;
  // Returns the preferred memory for sources and targets of copies. Returns nullptr if any memory
  // is equally good because the backend uses host memory.
  virtual std::shared_ptr<HostMemory> host() const { return nullptr; }
  // Allocates from host(), or else from the heap. Returns ResourceExhausted as Allocate does.
  virtual absl::StatusOr<tensor::AlignedBuffer> AllocateHost(std::size_t bytes) {
    const std::shared_ptr<HostMemory> memory = host();
    if (memory == nullptr) return tensor::AlignedBuffer(bytes);
    return memory->Allocate(bytes);
  }
  virtual MemoryUse memory() const = 0;
  // Returns nullopt if there is no device to measure. `ask_driver` also fills in `utilization` and
  // free memory, which may take a millisecond. Must not be called within a step.
  virtual std::optional<DeviceUse> device_use(bool ask_driver) {
    static_cast<void>(ask_driver);
    return std::nullopt;
  }

  // ---- Copies and their order

  // Upload queues a copy from host memory to the backend's memory; Download queues a copy in the
  // other direction. The sizes must be equal. The host's memory may be of any kind. Until a mark
  // recorded after the copy has passed, the source of an Upload must stay unchanged, and the target
  // of a Download must not be read. Copies to and from the device overlap with primitives only if
  // the host's memory is HostMemory.
  virtual void Upload(DeviceQueue queue, std::span<const std::byte> from,
                      std::span<std::byte> to) = 0;
  virtual void Download(DeviceQueue queue, std::span<const std::byte> from,
                        std::span<std::byte> to) = 0;

  // Returns a mark that counts as passed.
  virtual absl::StatusOr<std::unique_ptr<QueueMark>> MakeQueueMark() = 0;
  // Lets the mark pass once all earlier work of `queue` is done. Marks belong to this backend and
  // must not be destroyed before they have passed.
  virtual void Record(DeviceQueue queue, QueueMark& mark) = 0;
  // Makes later work of `queue` wait for the mark as last recorded. The caller does not wait.
  virtual void Await(DeviceQueue queue, QueueMark& mark) = 0;
  // Returns when the mark has passed. Returns Unavailable if the device has failed.
  virtual absl::Status Wait(QueueMark& mark) = 0;

  // ---- Steps

  // Begins a step. `signature` holds everything that determines the calls until EndStep: addresses,
  // sizes, batch, phase, numbers. A caller that passes a signature again promises that it will make
  // equal calls, and that the memory used by these calls was not freed between the two steps. A
  // recording that uses a mark is dropped when that mark is destroyed. Returns true if the backend
  // has queued its recording of this signature; the caller then skips the calls and continues with
  // EndStep.
  virtual bool BeginStep(std::span<const std::uint64_t> signature) = 0;
  // Ends the step without waiting. All calls and marks of the step have been queued in kCompute.
  virtual void EndStep() = 0;
  // Must be called after EndStep. Waits until kCompute is done, and copies the step's `result` from
  // the backend's memory to `to`. After an error, Finish returns the first error (see TakeError),
  // and `to` is unspecified.
  virtual absl::Status Finish(std::span<const std::byte> result, std::span<std::byte> to) = 0;
  // Returns and clears the first error since the last call. Must not be called within a step. The
  // error is ResourceExhausted, Internal with the library's message, or Unavailable, which means
  // that the device has failed and a new backend is needed.
  virtual absl::Status TakeError() = 0;
  // With true (the default), different processes also compute equal bits. With false, a backend may
  // measure its algorithms once per shape and use the fastest one, which may differ between
  // processes. Must not be called within a step.
  virtual void SetReproducible(bool) {}
  // Returns OK if this device supports the precision. Otherwise returns FailedPrecondition with
  // only the reason as its message.
  virtual absl::Status CheckPrecision(Precision precision) const = 0;
  // Returns the largest number of inputs of an embedding or a factorization machine.
  virtual std::size_t InputsMax() const { return std::numeric_limits<std::size_t>::max(); }
  // Sets whether products of float32 may be rounded to TF32, if CheckPrecision allows it; false by
  // default. Must not be called within a step.
  virtual void SetTf32(bool) {}
  // Attributes the work that follows to this layer or loss. The backend does not copy `layer`, so
  // the text must live until the next call or the end of the step.
  virtual void Enter(absl::string_view layer, Phase phase) = 0;

  // ---- Dense layers and windows

  // y[batch,out] = activation(x[batch,in] * w[in,out] + b[out]); b may be empty. If x and w have 16
  // bits, y (and then also dy) may be float32.
  virtual void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w,
                            In b, Activation activation, AnyOut y) = 0;
  // Computes the gradients from dy, the gradient of the output y, through the activation. For
  // kLinear, y is not read and may be empty. dy may be overwritten. dx may be empty (first layer).
  // db is empty exactly if there is no bias.
  virtual void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x,
                             AnyIn w, Activation activation, AnyIn y, AnyOut dy, AnyOut dx, Out dw,
                             Out db) = 0;

  // w is HWIO. b may be empty. y = activation(conv + b).
  virtual void Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b, Activation activation,
                             AnyOut y) = 0;
  virtual void Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation,
                              AnyIn y, AnyOut dy, AnyOut dx, Out dw, Out db) = 0;

  // `argmax` [outputs] receives the flat input index of each maximum, for the backward pass. Among
  // equal maxima the first one counts. In a window with NaN, the first NaN is the maximum. Padding
  // is never the maximum.
  virtual void MaxPoolForward(const PoolShape& s, AnyIn x, AnyOut y,
                              std::span<std::int32_t> argmax) = 0;
  virtual void MaxPoolBackward(const PoolShape& s, AnyIn dy, std::span<const std::int32_t> argmax,
                               AnyOut dx) = 0;

  // y[batch, channels] = mean over the positions of x[batch, positions, channels]; the gradient dx
  // distributes dy evenly.
  virtual void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions,
                                        std::int64_t channels, AnyIn x, AnyOut y) = 0;
  virtual void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions,
                                         std::int64_t channels, AnyIn dy, AnyOut dx) = 0;

  // ---- Element by element

  // Softmax is computed over the last dimension, of size `columns`. The backward pass uses the
  // output y. Both passes may work in place: y == x, dx == dy.
  virtual void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                                 AnyOut y) = 0;
  virtual void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn y,
                                  AnyIn dy, AnyOut dx) = 0;

  // y = x * mask / (1 - rate). The mask is a Philox function of (key, element index), the same on
  // every backend: an element is kept if Uniform(key, index) >= rate. The backward pass is the same
  // call with dy in place of x. The call may work in place. 0 <= rate < 1. `key` is one number in
  // memory.
  virtual void Dropout(double rate, std::span<const std::uint64_t> key, AnyIn x, AnyOut y) = 0;

  virtual void Zero(std::span<std::byte> memory) = 0;
  // x and y may have any two types. Values are rounded to nearest, ties to even; values beyond the
  // range of y's type become infinities.
  virtual void Copy(AnyIn x, AnyOut y) = 0;
  virtual void Scale(float factor, In x, Out y) = 0;  // y = factor * x
  // y += factor * x, rounded after each operation; with factor 1, y += x. x and y may have any two
  // types.
  virtual void AddScaled(float factor, AnyIn x, AnyOut y) = 0;
  // y = inputs[0] + inputs[1] + …, added in this order. There is at least one input. The list is in
  // host memory. Inputs may be identical.
  virtual void Sum(std::span<const AnyIn> inputs, AnyOut y) = 0;
  // y[i] = a[i] * b[i]. The call may work in place: y == a. a and b may be identical.
  virtual void Multiply(AnyIn a, AnyIn b, AnyOut y) = 0;
  // y[r, y_begin + c] = x[r, x_begin + c] for r < rows, c < width; rows have x_columns and
  // y_columns elements. The rest of y is unchanged.
  virtual void CopyColumns(std::int64_t rows, std::int64_t width, AnyIn x, std::int64_t x_columns,
                           std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                           std::int64_t y_begin) = 0;

  // ---- Normalization

  // Normalizes `rows` vectors of `channels` elements, each channel by its mean and variance (Ioffe
  // and Szegedy, 2015, algorithms 1 and 2): y = gamma (x - mean) / sqrt(variance + epsilon) + beta.
  // BatchNormForward computes mean and variance of these rows (the sum of squares is divided by
  // rows); BatchNormInference gets them as arguments. An empty gamma [channels] counts as 1, and an
  // empty beta [channels] as 0.
  virtual void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                In gamma, In beta, Out mean, Out variance, AnyOut y) = 0;
  virtual void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                  In gamma, In beta, In mean, In variance, AnyOut y) = 0;
  // Computes the gradient of BatchNormForward, including the paths through mean and variance. dx
  // may be empty; dgamma and dbeta are empty exactly if gamma and beta are.
  virtual void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                 In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                                 Out dbeta) = 0;

  // Normalizes each row by its own mean and variance (Ba, Kiros and Hinton, 2016). The forward pass
  // stores the mean and the variance of the rows [rows] for the backward pass. gamma and beta are
  // [columns]. The other arguments are as in BatchNormForward.
  virtual void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                                In gamma, In beta, Out mean, Out variance, AnyOut y) = 0;
  virtual void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                                 In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                                 Out dbeta) = 0;

  // ---- Products of vectors

  // y[n] = a[n] · b[n] for vectors of `elements`, summed in double. `normalize` divides the product
  // by |a| |b|, where each squared length counts as at least kSquareMin.
  virtual void DotForward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                          Out y) = 0;
  // da = dy b, or, for the cosine, dy (b / |a||b| - a (a·b) / |a|³|b|). The second term is absent
  // if |a| is at its minimum. a and b may be identical.
  virtual void DotBackward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                           In dy, Out da) = 0;

  // The second-order term of a factorization machine (Rendle, "Factorization Machines", ICDM 2010,
  // lemma 3.1) over the vectors of several inputs; inputs[i] is [batch, fields, dimension]. y[n] =
  // 0.5 * sum over d of (sums[n,d]^2 - sum over all vectors v of v[n,d]^2), where sums[n,d] is the
  // float32 sum of all vectors in order of inputs and fields; the backward pass needs sums [batch,
  // dimension]. The list is host memory.
  virtual void FactorizationForward(std::int64_t batch, std::int64_t dimension,
                                    std::span<const In> inputs, Out sums, Out y) = 0;
  // Computes the gradient of one input v [batch, fields, dimension]: dv = dy[n] * (sums[n,d] -
  // v[n,f,d]).
  virtual void FactorizationBackward(std::int64_t batch, std::int64_t dimension, In v, In sums,
                                     In dy, Out dv) = 0;

  // ---- Embeddings

  // `position` [inputs][batch][width of the input] holds one entry per id: the number of its row in
  // `rows` [any, dimension], or kAbsent. `weights` have the same shape, or are empty (all 1); with
  // kNone they are empty. With kNone, y is [batch, ids of an example, dimension], the rows
  // themselves. Otherwise y is [batch, dimension]: the sum over the ids of an example, in order of
  // inputs and elements, of (w * scale) * row. scale is 1 (sum), 1 / sum of w (mean) or 1 /
  // sqrt(sum of w²) (sqrtn), with these sums in double; it is 0 if the sum is 0.
  virtual void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                               In rows, In weights, AnyOut y) = 0;
  // Adds the gradient of each id, (w * scale) * dy, to its row of `row_gradients` [any, dimension].
  // Gradients of one row are added in the order of examples, and within an example in the order of
  // inputs and elements.
  virtual void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                                In weights, AnyIn dy, Out row_gradients) = 0;

  // ---- Results of a step for the host

  // Computes the loss of output [batch, rows, columns], and the gradient of the batch's mean loss
  // with respect to the output. An empty `gradient` is not computed. Losses of examples are added
  // in double, in order. As in Keras 2.9:
  //   sparse categorical   from logits: -log softmax[label]
  //                        from probabilities, clipped to [1e-7, 1 - 1e-7] and divided by their
  //                        sum: -log p[label]
  //   binary               from logits: max(x, 0) - x t + log(1 + exp(-|x|))
  //                        from p, clipped: -t log(p + 1e-7) - (1 - t) log(1 - p + 1e-7)
  //   mean squared error   (x - t)²
  // The gradient is 0 where a probability was clipped. An example is correct if the label of each
  // of its rows is the column with the largest value, or the first of several such columns. For
  // binary losses it is correct if every element has the predicted class (x > 0.5, or x > 0 for
  // logits) of its label (t > 0.5). A bad label is reported and not used as an index; the gradient
  // is finite then.
  virtual void ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient,
                           LossResult* result) = 0;
  // Fills counts [2 kAucBins]: the numbers of positive elements (label > 0.5), then the numbers of
  // negative elements, by the bin of the output p, or of sigmoid(p) for logits, computed in double.
  // Bin b holds (b / 199, (b + 1) / 199]; the first bin also holds 0 and NaN. Values beyond an end
  // are in the last bin at that end.
  virtual void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) = 0;
  // Computes in double the sum over examples, in order, of the mean of (output - label)^2 over the
  // `elements` of an example.
  virtual void SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels,
                                double* sum) = 0;
  // Computes the sum in double, in a fixed order. Zeros at the end of x do not change the bits of
  // the sum.
  virtual void SumOfSquares(In x, double* sum) = 0;
  // Sets *found to 1 if any element is NaN or Inf, and otherwise leaves it unchanged.
  virtual void FindNotFinite(AnyIn x, std::uint64_t* found) = 0;
};

// The least squared length in a normalized dot product, which is the square of Keras' 1e-6.
inline constexpr double kSquareMin = 1e-12;

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | gpu | gpu:N
  int threads = 1;              // size of every thread pool
  // If `threads` equals the number of CPUs that this process may use, and is above 1, the backend
  // binds the calling thread and its pool to one CPU each. The calling thread must be the compute
  // thread. Without binding, a server on the same host may wake up on the CPU of a spinning pool
  // thread. The scheduler can then put two pool threads on one CPU, and every primitive waits for
  // both threads.
  bool bind = false;
  std::string cuda_library = {};  // "" means libevergrad_cuda.so beside the executable
};
// Returns a UserError that names the device and the reason, for an unknown name or an unusable GPU.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

// Must be the first call of a daemon's main(), before any thread is started:
// PrepareThreadPools(std::getenv("OMP_WAIT_POLICY"), argv). If the next primitive comes late, the
// compute pools then sleep instead of spin; otherwise two workers on one host would occupy each
// other's cores. libgomp reads OMP_WAIT_POLICY when it is loaded, before main(). If the variable is
// unset, this function therefore sets it (and GOMP_SPINCOUNT, if that is unset) and executes the
// program again, with the same pid, arguments and open files. The function returns if the variable
// is set (by the user, by a supervisor, or by the first execution of the program). It also returns
// if the second execution could not be started, which only costs speed.
void PrepareThreadPools(const char* wait_policy, char** argv);

}  // namespace evergrad::worker
