// The seam between the model and what computes it: memory, its copies, and each primitive forward
// and backward on contiguous arrays, NHWC.
//
// Elements are float32. Activations and their gradients, and the kernels of products, may be of 16
// bits (AnyIn, AnyOut): then a primitive reads and writes those, and what it computes in between,
// sums above all, is float32 or wider. The operands of one call that may be of 16 bits are of one
// type unless said. In and Out are float32 always: weight gradients, statistics, losses.
//
// cpu/ (oneDNN + Eigen) is in every build; cuda/ loads libevergrad_cuda.so, or says why it does
// not. One contract suite over every implementation.
//
// Memory. A backend owns what it computes on. Every span that a primitive takes lies in memory of
// this backend (Allocate), also the structs that it fills for the host (LossResult, a sum, a flag);
// where host_memory() is true any host memory does. Elements are aligned to their type, arrays need
// no more. Host code looks at a backend's memory only where host_memory() says so, else it copies
// (Upload, Download).
//
// Order. A primitive may return before it has computed. Work is asked of three lanes, each of which
// does it in the order of the calls: kCompute for primitives, kIn and kOut for copies. Lanes wait
// for each other, and the host for a lane, by events alone:
//
//   kIn       upload ─▶ Record(there)
//   kCompute                Await(there) ─▶ primitives … layer 2 back ─▶ Record(made) ─▶ layer 1
//   back … kOut                                                                      Await(made) ─▶
//   download ─▶ Record(out) host      … BeginStep ─▶ all of kCompute's ─▶ EndStep ─▶ all of kOut's
//   ─▶ Finish ─▶ Wait(out)
//
// Step. BeginStep … EndStep encloses the primitives of one step, which a backend may record once
// and run again as a whole. So between the two there are only primitives, Enter, and Record and
// Await of kCompute: no allocation, no copy, no question. All that differs between two steps of one
// signature lies in memory: batch, weights, dropout keys. A primitive's numbers are constants of
// the model and the batch's size. What the host learns of a step it learns from Finish, in one
// small piece: the only time that it waits for kCompute.
//
// Errors. A primitive that could not compute (no memory, a shape that the library refuses) leaves
// its outputs unspecified and the first such error behind, naming the layer (Enter) and the
// primitive. From then on primitives do nothing, so that no unspecified index is followed, until
// Finish or TakeError has returned the error and forgotten it. Mistakes of a caller (sizes,
// aliasing) are not looked for: sizes are checked by Graph, each span has exactly the elements that
// its shape says, and no shape exceeds kElementsMax.
//
// Aliasing. Outputs never overlap inputs or each other unless said. Outputs are overwritten unless
// said; an empty output is not wanted where that is allowed.
//
// Bits: a function of inputs, shapes and `threads`, the same on every call. Sums whose order is
// said are made in that order. NaN and Inf are carried through every primitive, so that the loss
// shows them.
//
// Threads. One thread at a time uses a backend (the compute thread): the one that allocates,
// computes and drops memory. Its HostMemory may be used on any thread, and outlive it, as its
// buffers may. All else outlives no backend.
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
#include "common/tensor/tensor.h"

namespace evergrad::worker {

inline constexpr std::int64_t kElementsMax =
    (std::int64_t{1} << 31) - 1;  // of one array: argmax is 32-bit, and so are oneDNN's kernels

using In = std::span<const float>;
using Out = std::span<float>;

// What an element of memory is; numbered as tensor::WireType is.
enum class Element : std::uint8_t { kFloat32 = 1, kFloat16 = 3, kBFloat16 = 4 };
constexpr std::size_t BytesOf(Element e) { return e == Element::kFloat32 ? 4 : 2; }
constexpr const char* NameOf(Element e) {
  return e == Element::kFloat32 ? "float32" : e == Element::kFloat16 ? "float16" : "bfloat16";
}

// A span of elements of any of these types. Made from anything that is a span of float32.
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
  // Of float32.
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

// What a job's steps are computed in (`training.precision`; the names are Keras').
//   kTf32            float32, whose products may be rounded to TF32 (10 bits of mantissa) on their
//   way in kMixedBFloat16,  activations, their gradients and the kernels of products are of 16
//   bits; weights, their gradients, kMixedFloat16    statistics and losses are float32
enum class Precision { kFloat32, kTf32, kMixedBFloat16, kMixedFloat16 };
constexpr Element ElementOf(Precision p) {
  return p == Precision::kMixedBFloat16  ? Element::kBFloat16
         : p == Precision::kMixedFloat16 ? Element::kFloat16
                                         : Element::kFloat32;
}

// A piece of a backend's memory; goes back to it when dropped, which may be while work on it is
// still to be done. Not initialised.
class Memory {
 public:
  Memory() = default;
  explicit Memory(tensor::AlignedBuffer buffer) : buffer_(std::move(buffer)) {}
  std::size_t bytes() const { return buffer_.size(); }
  // All of it; addresses, which the host may follow where host_memory() says so.
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(buffer_.data()), buffer_.size() / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(buffer_.data()), buffer_.size() / sizeof(T)};
  }

 private:
  tensor::AlignedBuffer buffer_;  // 64-byte aligned; its home is the backend's allocator
};

// Memory of the host which Upload and Download take without a stop in between (page-locked, for a
// device). Thread-safe, shared with its buffers.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // What is dropped is kept for the next that is as large: a step may ask for it.
  // ResourceExhausted: there is none.
  virtual absl::StatusOr<tensor::AlignedBuffer> Allocate(std::size_t bytes) = 0;
};

// In bytes.
struct MemoryUse {
  std::uint64_t used = 0, peak = 0;  // handed out by Allocate: now, and at most so far
  std::uint64_t reserved =
      0;  // taken from the device or the system for it: `used` and what is kept for reuse
  std::uint64_t free = 0;  // what the device or the system still has; 0: not known
  double fragmentation =
      0;  // of what is kept for reuse, the share that is not in its largest piece
};

// What a device has measured of the steps so far with events of its own. Times are sums in seconds
// over the steps that were `measured`.
struct DeviceUse {
  std::string name;
  MemoryUse memory;
  std::uint64_t measured = 0;
  double in = 0, out = 0;  // copies, with what the host needs to hand them over
  std::uint64_t in_bytes = 0,
                staged_bytes =
                    0;  // uploaded so far, and of them what the compute thread had to copy first
  double kernels = 0;   // kCompute from the first kernel of a step to the last, without `stalled`
  double stalled = 0;   // kCompute waited for copies within the step
  std::optional<double> utilization;                   // 0 to 1, of the driver's last sample
  std::uint64_t eager = 0, captures = 0, replays = 0;  // steps, by how they were asked for
  std::map<std::string, std::uint64_t>
      recaptures;                         // captures that were not the shape's first, by reason
  std::uint64_t crowded = 0, graphs = 0;  // of the eager steps: there was no room for their graph
                                          // beside those that are kept
};

enum class Lane { kCompute, kIn, kOut };
inline constexpr int kLanes = 3;

// A point in a lane's work. Made once and recorded again each step.
class Event {
 public:
  virtual ~Event() = default;
};

// What the work that follows is for: in errors, traces and profiles.
enum class Phase { kForward, kLoss, kBackward, kFinish };

struct Conv2dShape {
  std::int64_t batch, in_h, in_w, in_c, out_h, out_w, filters, kernel_h, kernel_w, stride_h,
      stride_w;
  std::int64_t pad_top, pad_left, pad_bottom,
      pad_right;  // TensorFlow's `same` may pad more at the bottom and right
  friend auto operator<=>(const Conv2dShape&, const Conv2dShape&) = default;
};
struct PoolShape {
  std::int64_t batch, in_h, in_w, channels, out_h, out_w, pool_h, pool_w, stride_h, stride_w;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;
  friend auto operator<=>(const PoolShape&, const PoolShape&) = default;
};

enum class Activation { kLinear, kRelu, kTanh, kSigmoid, kSoftmax };

// What an embedding layer makes of the rows of an example's ids: each by itself, or one of all (a
// bag).
enum class Combiner { kNone, kSum, kMean, kSqrtN };
// The position of an id that reads no row: zeros, no part of a bag, no gradient.
inline constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();
struct EmbeddingShape {
  std::int64_t batch, dimension;
  std::span<const std::int64_t> widths;  // ids an example has in each input (host memory)
  Combiner combiner;
};

enum class LossType { kSparseCategoricalCrossentropy, kBinaryCrossentropy, kMeanSquaredError };
// A loss over an output of `rows` x `columns` per example. An example's loss is the mean over its
// rows (sparse categorical) or over its elements (the others), as Keras reduces.
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
  double sum;              // over examples; unspecified after a bad label
  std::int64_t correct;    // examples; 0 unless `accuracy`
  std::int64_t bad_label;  // position in `labels` of the first one that is no class (binary: not in
                           // [0, 1]; a NaN neither); -1: none
  double bad_value;        // that label
};

// Keras' AUC(num_thresholds=200): thresholds 0, 1/199, …, 1. Between two of them lie kAucBins bins.
inline constexpr int kAucThresholds = 200;
inline constexpr int kAucBins = kAucThresholds - 1;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu (oneDNN 2.6, avx512_core)"

  // ---- Memory

  // The host may read and write this backend's memory, and primitives take any memory of the
  // host's. Then primitives have computed when they return, copies too, and events are always
  // passed.
  virtual bool host_memory() const = 0;
  // At least 1 byte. ResourceExhausted: "no memory: what=WHAT bytes=ASKED free=FREE". Not within a
  // step.
  virtual absl::StatusOr<Memory> Allocate(std::size_t bytes, absl::string_view what) = 0;
  // Where what is to be copied, or has been, had best lie; null where that does not matter: the
  // memory is the host's.
  virtual std::shared_ptr<HostMemory> host() const { return nullptr; }
  // Of it, or of the heap where it is null. ResourceExhausted, as its.
  virtual absl::StatusOr<tensor::AlignedBuffer> AllocateHost(std::size_t bytes) {
    const std::shared_ptr<HostMemory> memory = host();
    if (memory == nullptr) return tensor::AlignedBuffer(bytes);
    return memory->Allocate(bytes);
  }
  virtual MemoryUse memory() const = 0;
  // None where there is no device to be measured. `ask_driver`: for `utilization` and what is free,
  // too, which may take a millisecond. Outside of a step.
  virtual std::optional<DeviceUse> device_use(bool ask_driver) {
    static_cast<void>(ask_driver);
    return std::nullopt;
  }

  // ---- Copies and their order

  // From the host's memory into the backend's, and back; sizes are equal. Asked of `lane`. The
  // host's side may be of any kind; it stays as it is (Upload), or is not looked at (Download),
  // until an event recorded behind the copy has passed. Copies to and from the device overlap with
  // primitives only where the host's side is HostMemory's.
  virtual void Upload(Lane lane, std::span<const std::byte> from, std::span<std::byte> to) = 0;
  virtual void Download(Lane lane, std::span<const std::byte> from, std::span<std::byte> to) = 0;

  // An event that has passed.
  virtual absl::StatusOr<std::unique_ptr<Event>> MakeEvent() = 0;
  // It passes once all that was asked of `lane` before has been done. The events are this backend's
  // and not dropped before they have passed.
  virtual void Record(Lane lane, Event& event) = 0;
  // What is asked of `lane` from now on waits for the event as it was last recorded. The caller
  // does not wait.
  virtual void Await(Lane lane, Event& event) = 0;
  // Returns when it has passed. Unavailable: the device has failed.
  virtual absl::Status Wait(Event& event) = 0;

  // ---- Steps

  // Opens a step. `signature`: everything that the calls until EndStep are made of: addresses,
  // sizes, batch, phase, numbers. Equal signatures mean equal calls, on memory that was not dropped
  // meanwhile; what was recorded with an event goes with that event. True: this backend has asked
  // kCompute to run what it recorded under this signature; the caller makes none of the calls and
  // goes on to EndStep.
  virtual bool BeginStep(std::span<const std::uint64_t> signature) = 0;
  // Closes it: all calls have been asked of kCompute, and their events recorded. The host goes on.
  virtual void EndStep() = 0;
  // After EndStep: returns when kCompute has done all, with the step's `result` (the backend's
  // memory) copied to `to`. Else the first error, see TakeError, and `to` is unspecified.
  virtual absl::Status Finish(std::span<const std::byte> result, std::span<std::byte> to) = 0;
  // Outside of a step: returns the first error since it was last asked and forgets it.
  // ResourceExhausted, Internal (the library's words), Unavailable (the device has failed, and this
  // backend with it: make another).
  virtual absl::Status TakeError() = 0;
  // True, as at first: the bits are the same from one process to the next, too. False: a backend
  // may measure, once for each shape, which of its algorithms is the fastest, and keep to it.
  // Outside of a step.
  virtual void SetReproducible(bool) {}
  // OK where this device computes in it; else FailedPrecondition, whose message is the reason and
  // nothing else.
  virtual absl::Status CheckPrecision(Precision precision) const = 0;
  // How many inputs an embedding or a factorization machine may have.
  virtual std::size_t InputsMax() const { return std::numeric_limits<std::size_t>::max(); }
  // Products of float32 may be rounded to TF32, where CheckPrecision says that it has it. At first
  // they may not. Outside of a step.
  virtual void SetTf32(bool) {}
  // What follows is for this layer (or loss). The view is kept until the next call or the end of
  // the step.
  virtual void Enter(absl::string_view layer, Phase phase) = 0;

  // ---- Dense layers and windows

  // y[batch,out] = activation(x[batch,in] * w[in,out] + b[out]); b may be empty. Where x and w are
  // of 16 bits, y may be float32 (and then so is dy).
  virtual void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w,
                            In b, Activation activation, AnyOut y) = 0;
  // From dy, the gradient of the output y, through the activation; y is not read for kLinear and
  // may then be empty. dy is the backend's to spoil. dx may be empty (first layer), db is where
  // there is a bias.
  virtual void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x,
                             AnyIn w, Activation activation, AnyIn y, AnyOut dy, AnyOut dx, Out dw,
                             Out db) = 0;

  // w is HWIO. b may be empty. y = activation(conv + b).
  virtual void Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b, Activation activation,
                             AnyOut y) = 0;
  virtual void Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation,
                              AnyIn y, AnyOut dy, AnyOut dx, Out dw, Out db) = 0;

  // `argmax` [outputs] receives the flat input index of each maximum (first one on ties; the first
  // NaN, if there is one), for the backward pass. Padding never wins.
  virtual void MaxPoolForward(const PoolShape& s, AnyIn x, AnyOut y,
                              std::span<std::int32_t> argmax) = 0;
  virtual void MaxPoolBackward(const PoolShape& s, AnyIn dy, std::span<const std::int32_t> argmax,
                               AnyOut dx) = 0;

  // y[batch, channels] = mean over the positions of x[batch, positions, channels]; dx spreads dy
  // evenly.
  virtual void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions,
                                        std::int64_t channels, AnyIn x, AnyOut y) = 0;
  virtual void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions,
                                         std::int64_t channels, AnyIn dy, AnyOut dx) = 0;

  // ---- Element by element

  // Softmax is over the last dimension of `columns`. Backward uses the output y. In place is
  // allowed: y == x, dx == dy.
  virtual void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                                 AnyOut y) = 0;
  virtual void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn y,
                                  AnyIn dy, AnyOut dx) = 0;

  // y = x * mask / (1 - rate); mask from Philox by (key, element index): the same on every backend.
  // Backward with dy for x. An element is kept where Uniform(key, index) >= rate. In place is
  // allowed. 0 <= rate < 1. `key` is one number in memory.
  virtual void Dropout(double rate, std::span<const std::uint64_t> key, AnyIn x, AnyOut y) = 0;

  virtual void Zero(std::span<std::byte> memory) = 0;
  // Of any two types: rounded to the nearest, ties to even; what is beyond the range of y's type
  // becomes an infinity.
  virtual void Copy(AnyIn x, AnyOut y) = 0;
  virtual void Scale(float factor, In x, Out y) = 0;  // y = factor * x
  virtual void AddScaled(
      float factor, AnyIn x,
      AnyOut y) = 0;  // y += factor * x, rounded after each; factor 1: y += x. Of any two types
  // y = inputs[0] + inputs[1] + …, added in this order. At least one; the list is host memory;
  // inputs may be one and the same.
  virtual void Sum(std::span<const AnyIn> inputs, AnyOut y) = 0;
  // y[i] = a[i] * b[i]. In place is allowed: y == a. a and b may be one and the same.
  virtual void Multiply(AnyIn a, AnyIn b, AnyOut y) = 0;
  // y[r, y_begin + c] = x[r, x_begin + c] for r < rows, c < width; rows of x_columns and y_columns.
  // The rest of y is not touched.
  virtual void CopyColumns(std::int64_t rows, std::int64_t width, AnyIn x, std::int64_t x_columns,
                           std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                           std::int64_t y_begin) = 0;

  // ---- Normalization

  // Of `rows` vectors of `channels` elements, each channel by its own mean and variance (Ioffe and
  // Szegedy, 2015, algorithms 1 and 2): y = gamma (x - mean) / sqrt(variance + epsilon) + beta. The
  // first computes mean and variance of these rows (the sum of squares is divided by rows); the
  // second is told them. gamma and beta [channels] may be empty: 1 and 0.
  virtual void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                In gamma, In beta, Out mean, Out variance, AnyOut y) = 0;
  virtual void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                  In gamma, In beta, In mean, In variance, AnyOut y) = 0;
  // Of BatchNormForward, through mean and variance. dx may be empty; dgamma and dbeta are where
  // gamma and beta are.
  virtual void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                                 In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                                 Out dbeta) = 0;

  // Each row by its own mean and variance (Ba, Kiros and Hinton, 2016), which the forward pass
  // leaves in mean and variance [rows] for the backward pass; gamma and beta are [columns]. The
  // rest is as above.
  virtual void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                                In gamma, In beta, Out mean, Out variance, AnyOut y) = 0;
  virtual void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x,
                                 In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                                 Out dbeta) = 0;

  // ---- Products of vectors

  // y[n] = a[n] · b[n] of vectors of `elements`, summed in double; `normalize` divides it by |a|
  // |b|, each squared length at least kSquareMin.
  virtual void DotForward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                          Out y) = 0;
  // da = dy b, or of the cosine dy (b / |a||b| - a (a·b) / |a|³|b|), the second term absent where
  // |a| is held at its least. a and b may be one.
  virtual void DotBackward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                           In dy, Out da) = 0;

  // The second-order term of a factorization machine (Rendle, "Factorization Machines", ICDM 2010,
  // lemma 3.1) over the vectors of several inputs, inputs[i] being [batch, fields of it,
  // dimension]: y[n] = 0.5 * sum over d of (sums[n,d]^2 - sum over all vectors v of v[n,d]^2),
  // where sums[n,d] is the sum of all of them in order of inputs and fields, in float32; it is kept
  // for the backward pass [batch, dimension]. The list is host memory.
  virtual void FactorizationForward(std::int64_t batch, std::int64_t dimension,
                                    std::span<const In> inputs, Out sums, Out y) = 0;
  // Of one input v [batch, fields, dimension]: dv = dy[n] * (sums[n,d] - v[n,f,d]).
  virtual void FactorizationBackward(std::int64_t batch, std::int64_t dimension, In v, In sums,
                                     In dy, Out dv) = 0;

  // ---- Embeddings

  // `position` [inputs][batch][width of the input]: the row of `rows` [any, dimension] that each id
  // reads, or kAbsent. `weights` are of the same shape, or empty: 1; with kNone they are empty.
  // kNone: y is [batch, ids of an example, dimension], the rows themselves. Else y is [batch,
  // dimension]: the sum over the ids of an example, in order of inputs and elements, of (w * scale)
  // * row, where scale is 1 (sum), 1 / sum of the w (mean) or 1 / sqrt(sum of the w²) (sqrtn), that
  // sum in double, and 0 where it is 0.
  virtual void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                               In rows, In weights, AnyOut y) = 0;
  // Adds the gradient of each id to its row of `row_gradients` [any, dimension]: (w * scale) * dy.
  // A row's gradients are added in the order of examples, and in each of inputs and elements.
  virtual void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                                In weights, AnyIn dy, Out row_gradients) = 0;

  // ---- What a step tells the host

  // Loss of output [batch, rows, columns] and its gradient, which is of the batch's mean loss by
  // the output; empty: not wanted. Losses of examples are added in double, in order. As Keras 2.9:
  //   sparse categorical   -log softmax[label] of logits; of probabilities, clipped to [1e-7, 1 -
  //   1e-7] and divided by their sum, -log p[label] binary               max(x, 0) - x t + log(1 +
  //   exp(-|x|)) of logits; of p, clipped, -t log(p + 1e-7) - (1 - t) log(1 - p + 1e-7) mean
  //   squared error   (x - t)²
  // with no gradient where a probability was clipped. Correct is an example all of whose rows have
  // their first largest column at the label (binary: x > 0.5, of logits > 0, just where t > 0.5). A
  // bad label is reported and no address is made of it; the gradient is then finite.
  virtual void ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient,
                           LossResult* result) = 0;
  // counts [2 kAucBins] of the elements: positives (label > 0.5), then negatives, by bin of p, or
  // sigmoid(p) of logits, in double: bin b holds (b / 199, (b + 1) / 199], the first one 0 and NaN,
  // too; what is beyond an end is in the last bin there.
  virtual void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) = 0;
  // Over examples of `elements`, in order, the mean of (output - label)^2 of its elements, in
  // double.
  virtual void SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels,
                                double* sum) = 0;
  // In double, in a fixed order, of whose bits zeros at the end of x change none.
  virtual void SumOfSquares(In x, double* sum) = 0;
  // Sets *found to 1 if any element is NaN or Inf; else leaves it.
  virtual void FindNotFinite(AnyIn x, std::uint64_t* found) = 0;
};

// The least that a squared length counts as in a normalized dot product: Keras' 1e-6 squared.
inline constexpr double kSquareMin = 1e-12;

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | gpu | gpu:N
  int threads = 1;              // sizes every pool
  // Where `threads` is the number of processors that this process may use (and above 1): the thread
  // that makes the backend, which is then the one that computes, and its pool are bound to one
  // each. Else a server on the same host wakes up where a part of the pool spins, the scheduler
  // puts two parts on one processor, and every primitive waits for both.
  bool bind = false;
  std::string cuda_library = {};  // "": libevergrad_cuda.so beside the executable
};
// UserError naming the device: no such name, or a GPU that cannot be had, with the reason.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

// First line of a daemon's main(), before any thread:
// PrepareThreadPools(std::getenv("OMP_WAIT_POLICY"), argv). Lets the pools that compute sleep
// instead of spin (longer than between two primitives), or two workers on one host take each
// other's cores. libgomp reads the variable when it is loaded, before main(), so when it is not set
// this sets it (and GOMP_SPINCOUNT, where that is not set) and executes the program again: same
// pid, arguments and open files. Returns when it is set (by the user, a supervisor or the first
// pass), or when executing failed, which costs only speed.
void PrepareThreadPools(const char* wait_policy, char** argv);

}  // namespace evergrad::worker
