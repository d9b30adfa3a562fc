#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "dnnl.hpp"
#include "worker/backend/cpu/convolution.h"
#include "worker/backend/cpu/elementwise.h"
#include "worker/backend/cpu/embedding.h"
#include "worker/backend/cpu/losses.h"
#include "worker/backend/cpu/matmul.h"
#include "worker/backend/cpu/max_pool.h"
#include "worker/backend/cpu/memory.h"
#include "worker/backend/cpu/normalization.h"
#include "worker/backend/cpu/products.h"
#include "worker/backend/cpu/team.h"

namespace evergrad::worker {
namespace {

constexpr int kThreadsMax = 1024;
// The limit of plans. A model has tens of shapes, and twice as many with the shapes of the short
// last batch. More plans arise only if the batch size keeps changing. At the limit all plans are
// dropped, because each plan holds reordered weights and scratch memory.
constexpr std::size_t kPlansMax = 256;

std::string& IsaLimit() {
  static std::string limit;
  return limit;
}

// oneDNN 2.6's bfloat16 products for AMX end in SIGILL for every shape, because oneDNN uses tiles
// before it configures them. (This was seen on Debian 12 with kernel 6.18, which permitted tiles.)
// Therefore the first backend of a process limits the instruction set below AMX; oneDNN accepts the
// limit only before its first use. If the environment sets a limit that is at least as low, that
// limit is kept.
void GoWithoutTiles() {
  static const bool done = [] {
    const std::string isa = absl::AsciiStrToLower(IsaLimit());
    for (const char* const lower : {"sse41", "avx", "avx2", "avx2_vnni", "avx512_core",
                                    "avx512_core_vnni", "avx512_core_bf16"})
      if (isa == lower) return true;
    return dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16) == dnnl::status::success;
  }();
  static_cast<void>(done);
}

const char* IsaName() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41: return "sse41";
    case dnnl::cpu_isa::avx: return "avx";
    case dnnl::cpu_isa::avx2: return "avx2";
    case dnnl::cpu_isa::avx512_core: return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni: return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16: return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx: return "avx512_core_amx";
    default: return "other";
  }
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads)
      : threads_(threads),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        matmul_(engine_, stream_) {}

  std::string name() const override {
    const dnnl_version_t* version = dnnl_version();
    return absl::StrCat("cpu (oneDNN ", version->major, ".", version->minor, ", ", IsaName(), ", ",
                        threads_, threads_ == 1 ? " thread)" : " threads)");
  }

  bool host_memory() const override { return true; }
  absl::StatusOr<Memory> Allocate(std::size_t bytes, absl::string_view what) override {
    absl::StatusOr<tensor::AlignedBuffer> buffer = cpu::Heap::Allocate(heap_, bytes, what);
    if (!buffer.ok()) return buffer.status();
    return Memory(*std::move(buffer));
  }
  absl::StatusOr<tensor::AlignedBuffer> AllocateHost(std::size_t bytes) override {
    return cpu::Heap::Allocate(std::make_shared<cpu::Heap>(), bytes, "host memory");
  }
  MemoryUse memory() const override { return heap_->use(); }

  void Upload(DeviceQueue, std::span<const std::byte> from, std::span<std::byte> to) override {
    CopyBytes(from, to);
  }
  void Download(DeviceQueue, std::span<const std::byte> from, std::span<std::byte> to) override {
    CopyBytes(from, to);
  }
  absl::StatusOr<std::unique_ptr<QueueMark>> MakeQueueMark() override {
    return std::make_unique<QueueMark>();
  }
  void Record(DeviceQueue, QueueMark&) override {}
  void Await(DeviceQueue, QueueMark&) override {}
  absl::Status Wait(QueueMark&) override { return absl::OkStatus(); }

  bool BeginStep(std::span<const std::uint64_t>) override { return false; }
  void EndStep() override { layer_ = {}; }
  absl::Status Finish(std::span<const std::byte> result, std::span<std::byte> to) override {
    CopyBytes(result, to);
    return TakeError();
  }
  absl::Status TakeError() override { return std::exchange(error_, absl::OkStatus()); }
  void Enter(absl::string_view layer, Phase) override { layer_ = layer; }
  // oneDNN 2.6 has no float16, and has bfloat16 from AVX-512 on. On a CPU below avx512_core_bf16,
  // bfloat16 is correct but slow, because oneDNN computes it with float32 instructions.
  absl::Status CheckPrecision(Precision precision) const override {
    switch (precision) {
      case Precision::kFloat32: return absl::OkStatus();
      case Precision::kTf32: return absl::FailedPreconditionError("only NVIDIA's GPUs have TF32");
      case Precision::kMixedFloat16:
        return absl::FailedPreconditionError("oneDNN has no float16 products for CPUs");
      case Precision::kMixedBFloat16: break;
    }
    const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa()),
               wants = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);  // values are bit sets
    if ((has & wants) == wants) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "oneDNN has bfloat16 products only for CPUs with avx512_core or newer: cpu=", IsaName()));
  }

  void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w, In b,
                    Activation activation, AnyOut y) override {
    Guard("dense forward", [&] {
      if (x.is_float32()) {
        // y = x w
        Multiply('N', 'N', batch, out, in, x.floats(), in, w.floats(), out, y.floats(), out);
        if (!b.empty()) cpu::AddBias(threads_, batch, out, b, y);
      } else {
        matmul_.Multiply({batch, out, in, false, false, !b.empty(), x.type(), y.type()}, x, w, b,
                         y);
      }
      Activate(activation, batch, out, y);
    });
  }

  void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, AnyIn x, AnyIn w,
                     Activation activation, AnyIn y, AnyOut dy, AnyOut dx, Out dw,
                     Out db) override {
    Guard("dense backward", [&] {
      ActivateBackward(activation, batch, out, y, dy);
      if (!db.empty()) cpu::ColumnSums(threads_, batch, out, dy, db);
      if (x.is_float32()) {
        if (!dx.empty())
          Multiply('N', 'T', batch, in, out, dy.floats(), out, w.floats(), out, dx.floats(),
                   in);  // dx = dy wᵀ
        // dw = xᵀ dy
        Multiply('T', 'N', in, out, batch, x.floats(), in, dy.floats(), out, dw, out);
        return;
      }
      const AnyIn g = Narrow(dy, x.type());
      if (!dx.empty())
        matmul_.Multiply({batch, in, out, false, true, false, x.type(), dx.type()}, g, w, {}, dx);
      matmul_.Multiply({in, out, batch, true, false, false, x.type(), Element::kFloat32}, x, g, {},
                       dw);
    });
  }

  void Conv2dForward(const Conv2dShape& s, AnyIn x, AnyIn w, In b, Activation activation,
                     AnyOut y) override {
    Guard("conv2d forward", [&] {
      const bool fused = activation == Activation::kRelu && x.is_float32() &&
                         CannotOverflow(s, x.floats(), w.floats(), b);
      PlanOf(s, x.type(), !b.empty(), fused).Forward(x, w, b, y);
      if (!fused) Activate(activation, s.batch * s.out_h * s.out_w, s.filters, y);
    });
  }

  void Conv2dBackward(const Conv2dShape& s, AnyIn x, AnyIn w, Activation activation, AnyIn y,
                      AnyOut dy, AnyOut dx, Out dw, Out db) override {
    Guard("conv2d backward", [&] {
      ActivateBackward(activation, s.batch * s.out_h * s.out_w, s.filters, y, dy);
      cpu::Convolution& plan = PlanOf(s, x.type(), !db.empty(), false);
      if (!dx.empty()) plan.BackwardData(w, dy, dx);
      plan.BackwardWeights(x, dy, dw, db);
    });
  }

  void MaxPoolForward(const PoolShape& s, AnyIn x, AnyOut y,
                      std::span<std::int32_t> argmax) override {
    Guard("max pooling forward", [&] { cpu::MaxPoolForward(threads_, s, x, y, argmax); });
  }
  void MaxPoolBackward(const PoolShape& s, AnyIn dy, std::span<const std::int32_t> argmax,
                       AnyOut dx) override {
    Guard("max pooling backward", [&] { cpu::MaxPoolBackward(threads_, s, dy, argmax, dx); });
  }
  void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn x,
                         AnyOut y) override {
    Guard("activation forward", [&] { cpu::ActivationForward(threads_, a, rows, columns, x, y); });
  }
  void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, AnyIn y, AnyIn dy,
                          AnyOut dx) override {
    Guard("activation backward",
          [&] { cpu::ActivationBackward(threads_, a, rows, columns, y, dy, dx); });
  }
  void Dropout(double rate, std::span<const std::uint64_t> key, AnyIn x, AnyOut y) override {
    Guard("dropout", [&] { cpu::Dropout(threads_, rate, key[0], x, y); });
  }
  void Zero(std::span<std::byte> memory) override {
    Guard("zero", [&] { std::fill(memory.begin(), memory.end(), std::byte{0}); });
  }
  void Copy(AnyIn x, AnyOut y) override {
    Guard("copy", [&] { cpu::Copy(threads_, x, y); });
  }
  void Scale(float factor, In x, Out y) override {
    Guard("scale", [&] { cpu::Scale(threads_, factor, x, y); });
  }
  void AddScaled(float factor, AnyIn x, AnyOut y) override {
    Guard("add scaled", [&] { cpu::AddScaled(threads_, factor, x, y); });
  }
  void Sum(std::span<const AnyIn> inputs, AnyOut y) override {
    Guard("sum", [&] { cpu::Sum(threads_, inputs, y); });
  }
  void Multiply(AnyIn a, AnyIn b, AnyOut y) override {
    Guard("multiply", [&] { cpu::Multiply(threads_, a, b, y); });
  }
  void CopyColumns(std::int64_t rows, std::int64_t width, AnyIn x, std::int64_t x_columns,
                   std::int64_t x_begin, AnyOut y, std::int64_t y_columns,
                   std::int64_t y_begin) override {
    Guard("copy columns", [&] {
      cpu::CopyColumns(threads_, rows, width, x, x_columns, x_begin, y, y_columns, y_begin);
    });
  }
  void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    Guard("batch normalization forward", [&] {
      cpu::BatchNormForward(threads_, rows, channels, epsilon, x, gamma, beta, mean, variance, y);
    });
  }
  void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                          In gamma, In beta, In mean, In variance, AnyOut y) override {
    Guard("batch normalization", [&] {
      cpu::BatchNormInference(threads_, rows, channels, epsilon, x, gamma, beta, mean, variance, y);
    });
  }
  void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, AnyIn x,
                         In gamma, In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    Guard("batch normalization backward", [&] {
      cpu::BatchNormBackward(threads_, rows, channels, epsilon, x, gamma, mean, variance, dy, dx,
                             dgamma, dbeta);
    });
  }
  void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                        In beta, Out mean, Out variance, AnyOut y) override {
    Guard("layer normalization forward", [&] {
      cpu::LayerNormForward(threads_, rows, columns, epsilon, x, gamma, beta, mean, variance, y);
    });
  }
  void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, AnyIn x, In gamma,
                         In mean, In variance, AnyIn dy, AnyOut dx, Out dgamma,
                         Out dbeta) override {
    Guard("layer normalization backward", [&] {
      cpu::LayerNormBackward(threads_, rows, columns, epsilon, x, gamma, mean, variance, dy, dx,
                             dgamma, dbeta);
    });
  }
  void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                AnyIn x, AnyOut y) override {
    Guard("global average pooling forward",
          [&] { cpu::GlobalAveragePoolForward(threads_, batch, positions, channels, x, y); });
  }
  void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions, std::int64_t channels,
                                 AnyIn dy, AnyOut dx) override {
    Guard("global average pooling backward",
          [&] { cpu::GlobalAveragePoolBackward(threads_, batch, positions, channels, dy, dx); });
  }

  void DotForward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b,
                  Out y) override {
    Guard("dot forward", [&] { cpu::DotForward(threads_, batch, elements, normalize, a, b, y); });
  }
  void DotBackward(std::int64_t batch, std::int64_t elements, bool normalize, In a, In b, In dy,
                   Out da) override {
    Guard("dot backward",
          [&] { cpu::DotBackward(threads_, batch, elements, normalize, a, b, dy, da); });
  }
  void FactorizationForward(std::int64_t batch, std::int64_t dimension, std::span<const In> inputs,
                            Out sums, Out y) override {
    Guard("factorization machine forward",
          [&] { cpu::FactorizationForward(threads_, batch, dimension, inputs, sums, y); });
  }
  void FactorizationBackward(std::int64_t batch, std::int64_t dimension, In v, In sums, In dy,
                             Out dv) override {
    Guard("factorization machine backward",
          [&] { cpu::FactorizationBackward(threads_, batch, dimension, v, sums, dy, dv); });
  }
  void EmbeddingGather(const EmbeddingShape& s, std::span<const std::uint32_t> position, In rows,
                       In weights, AnyOut y) override {
    Guard("embedding gather", [&] { cpu::EmbeddingGather(s, position, rows, weights, y); });
  }
  void EmbeddingScatter(const EmbeddingShape& s, std::span<const std::uint32_t> position,
                        In weights, AnyIn dy, Out row_gradients) override {
    Guard("embedding scatter",
          [&] { cpu::EmbeddingScatter(s, position, weights, dy, row_gradients); });
  }

  void ComputeLoss(const Loss& loss, std::int64_t batch, In output, In labels, Out gradient,
                   LossResult* result) override {
    Guard("loss", [&] { *result = cpu::ComputeLoss(loss, batch, output, labels, gradient); });
  }
  void CountAuc(bool from_logits, In output, In labels, std::span<std::int64_t> counts) override {
    Guard("auc", [&] { cpu::CountAuc(from_logits, output, labels, counts); });
  }
  void SumOfMeanSquares(std::int64_t batch, std::int64_t elements, In output, In labels,
                        double* sum) override {
    Guard("sum of mean squares",
          [&] { *sum = cpu::SumOfMeanSquares(batch, elements, output, labels); });
  }
  void SumOfSquares(In x, double* sum) override {
    Guard("sum of squares", [&] { *sum = cpu::SumOfSquares(x); });
  }
  void FindNotFinite(AnyIn x, std::uint64_t* found) override {
    Guard("find not finite", [&] {
      if (*found == 0 && !cpu::AllFinite(threads_, x)) *found = 1;
    });
  }

 private:
  // Runs `body` and catches oneDNN's exceptions. The first error is kept, and nothing is computed
  // until the error has been returned.
  template <typename Body>
  void Guard(absl::string_view what, Body body) {
    if (!error_.ok()) return;
    cpu::SetTeamSize(threads_);
    try {
      body();
    } catch (const dnnl::error& error) {
      const bool memory = error.status == dnnl_out_of_memory;
      Fail(memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal, what,
           absl::StrCat(error.what(), " (oneDNN status ", static_cast<int>(error.status), ")"));
    } catch (const std::bad_alloc&) {
      Fail(absl::StatusCode::kResourceExhausted, what, "out of memory");
    }
  }
  void Fail(absl::StatusCode code, absl::string_view what, absl::string_view why) {
    error_ = absl::Status(code, absl::StrCat("backend could not compute: layer=", layer_,
                                             " primitive=", what, " cause=", why));
  }
  static void CopyBytes(std::span<const std::byte> from, std::span<std::byte> to) {
    std::copy(from.begin(), from.end(), to.begin());
  }

  // c[m,n] = op(a) op(b), row-major; `a_row`, `b_row` and `c_row` are the leading dimensions of the
  // stored arrays.
  void Multiply(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                In a, std::int64_t a_row, In b, std::int64_t b_row, Out c, std::int64_t c_row) {
    const dnnl::status status = dnnl::sgemm(transpose_a, transpose_b, m, n, k, 1.0f, a.data(),
                                            a_row, b.data(), b_row, 0.0f, c.data(), c_row);
    if (status != dnnl::status::success)
      throw dnnl::error(static_cast<dnnl_status_t>(status), "matrix product");
  }

  // Returns `x` converted to `type`, valid until the next call.
  AnyIn Narrow(AnyIn x, Element type) {
    if (x.type() == type) return x;
    const std::size_t bytes = x.size() * BytesOf(type);
    if (narrow_.size() < bytes) narrow_ = tensor::AlignedBuffer(bytes);
    const AnyOut to(narrow_.data(), x.size(), type);
    cpu::Copy(threads_, x, to);
    return to;
  }

  void Activate(Activation activation, std::int64_t rows, std::int64_t columns, AnyOut y) {
    if (activation != Activation::kLinear)
      cpu::ActivationForward(threads_, activation, rows, columns, y, y);
  }
  void ActivateBackward(Activation activation, std::int64_t rows, std::int64_t columns, AnyIn y,
                        AnyOut dy) {
    if (activation != Activation::kLinear)
      cpu::ActivationBackward(threads_, activation, rows, columns, y, dy, dy);
  }

  // oneDNN's fused relu turns NaN into 0, which would hide a diverged model. Therefore relu is
  // fused only if no NaN can arise: all operands are finite and no partial sum can exceed float's
  // range. The check reads x once, which costs less than a separate pass over y.
  bool CannotOverflow(const Conv2dShape& s, In x, In w, In b) const {
    const double products = static_cast<double>(s.kernel_h * s.kernel_w * s.in_c);
    const double bound =
        products * cpu::LargestMagnitude(threads_, x) * cpu::LargestMagnitude(threads_, w) +
        (b.empty() ? 0.0 : cpu::LargestMagnitude(threads_, b));
    return bound < 0.5 * static_cast<double>(std::numeric_limits<float>::max());
  }

  cpu::Convolution& PlanOf(const Conv2dShape& shape, Element type, bool with_bias, bool with_relu) {
    const auto key = std::make_tuple(shape, type, with_bias, with_relu);
    auto found = convolutions_.find(key);
    if (found == convolutions_.end()) {
      auto plan =
          std::make_unique<cpu::Convolution>(shape, type, with_bias, with_relu, engine_, stream_);
      if (convolutions_.size() >= kPlansMax) convolutions_.clear();
      found = convolutions_.emplace(key, std::move(plan)).first;
    }
    return *found->second;
  }

  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<std::tuple<Conv2dShape, Element, bool, bool>, std::unique_ptr<cpu::Convolution>>
      convolutions_;
  cpu::Matmul matmul_;
  tensor::AlignedBuffer narrow_;
  const std::shared_ptr<cpu::Heap> heap_ = std::make_shared<cpu::Heap>();
  absl::string_view layer_;
  absl::Status error_;
};

}  // namespace

void KeepIsaLimit(const char* limit) { IsaLimit() = limit == nullptr ? "" : limit; }

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(int threads, bool bind) {
  if (threads < 1 || threads > kThreadsMax) {
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("threads out of range: want=1..", kThreadsMax, " got=", threads)));
  }
  try {
    GoWithoutTiles();
    auto made = std::make_unique<CpuBackend>(threads);
    if (bind) cpu::BindTeam(threads);
    return made;
  } catch (const dnnl::error& error) {
    return absl::UnavailableError(
        absl::StrCat("oneDNN has no CPU engine on this host: cause=", error.what()));
  }
}

}  // namespace evergrad::worker
