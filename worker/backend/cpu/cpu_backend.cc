#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "dnnl.hpp"
#include "worker/backend/cpu/convolution.h"
#include "worker/backend/cpu/elementwise.h"
#include "worker/backend/cpu/max_pool.h"
#include "worker/backend/cpu/normalization.h"
#include "worker/backend/cpu/team.h"

namespace evergrad::worker {
namespace {

constexpr int kThreadsMax = 1024;
// A model has tens of shapes, doubled by the short last batch. More come only from batch sizes that keep changing, and then
// dropping all and starting over bounds the memory (a plan holds its reordered weights and scratch).
constexpr std::size_t kPlansMax = 256;

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
  explicit CpuBackend(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  std::string name() const override {
    const dnnl_version_t* version = dnnl_version();
    return absl::StrCat("cpu (oneDNN ", version->major, ".", version->minor, ", ", IsaName(), ", ", threads_,
                        threads_ == 1 ? " thread)" : " threads)");
  }

  absl::Status TakeError() override { return std::exchange(error_, absl::OkStatus()); }

  void DenseForward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In b, Activation activation, Out y) override {
    Guard("dense forward", [&] {
      // y = x w
      Multiply('N', 'N', batch, out, in, x, in, w, out, y, out);
      if (!b.empty()) cpu::AddBias(threads_, batch, out, b, y);
      Activate(activation, batch, out, y);
    });
  }

  void DenseBackward(std::int64_t batch, std::int64_t in, std::int64_t out, In x, In w, In dy, Out dx, Out dw, Out db) override {
    Guard("dense backward", [&] {
      if (!dx.empty()) Multiply('N', 'T', batch, in, out, dy, out, w, out, dx, in);  // dx = dy wᵀ
      Multiply('T', 'N', in, out, batch, x, in, dy, out, dw, out);                   // dw = xᵀ dy
      if (!db.empty()) cpu::ColumnSums(threads_, batch, out, dy, db);
    });
  }

  void Conv2dForward(const Conv2dShape& s, In x, In w, In b, Activation activation, Out y) override {
    Guard("conv2d forward", [&] {
      const bool fused = activation == Activation::kRelu && CannotOverflow(s, x, w, b);
      PlanOf(s, !b.empty(), fused).Forward(x, w, b, y);
      if (!fused) Activate(activation, s.batch * s.out_h * s.out_w, s.filters, y);
    });
  }

  void Conv2dBackward(const Conv2dShape& s, In x, In w, In dy, Out dx, Out dw, Out db) override {
    Guard("conv2d backward", [&] {
      cpu::Convolution& plan = PlanOf(s, !db.empty(), false);
      if (!dx.empty()) plan.BackwardData(w, dy, dx);
      plan.BackwardWeights(x, dy, dw, db);
    });
  }

  void MaxPoolForward(const PoolShape& s, In x, Out y, std::span<std::int32_t> argmax) override {
    Guard("max pooling forward", [&] { cpu::MaxPoolForward(threads_, s, x, y, argmax); });
  }
  void MaxPoolBackward(const PoolShape& s, In dy, std::span<const std::int32_t> argmax, Out dx) override {
    Guard("max pooling backward", [&] { cpu::MaxPoolBackward(threads_, s, dy, argmax, dx); });
  }
  void ActivationForward(Activation a, std::int64_t rows, std::int64_t columns, In x, Out y) override {
    Guard("activation forward", [&] { cpu::ActivationForward(threads_, a, rows, columns, x, y); });
  }
  void ActivationBackward(Activation a, std::int64_t rows, std::int64_t columns, In y, In dy, Out dx) override {
    Guard("activation backward", [&] { cpu::ActivationBackward(threads_, a, rows, columns, y, dy, dx); });
  }
  void Dropout(double rate, std::uint64_t key, In x, Out y) override {
    Guard("dropout", [&] { cpu::Dropout(threads_, rate, key, x, y); });
  }
  void BatchNormForward(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In beta, Out mean, Out variance, Out y) override {
    Guard("batch normalization forward", [&] { cpu::BatchNormForward(threads_, rows, channels, epsilon, x, gamma, beta, mean, variance, y); });
  }
  void BatchNormInference(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In beta, In mean, In variance, Out y) override {
    Guard("batch normalization", [&] { cpu::BatchNormInference(threads_, rows, channels, epsilon, x, gamma, beta, mean, variance, y); });
  }
  void BatchNormBackward(std::int64_t rows, std::int64_t channels, double epsilon, In x, In gamma, In mean, In variance, In dy, Out dx, Out dgamma,
                         Out dbeta) override {
    Guard("batch normalization backward",
          [&] { cpu::BatchNormBackward(threads_, rows, channels, epsilon, x, gamma, mean, variance, dy, dx, dgamma, dbeta); });
  }
  void LayerNormForward(std::int64_t rows, std::int64_t columns, double epsilon, In x, In gamma, In beta, Out mean, Out variance, Out y) override {
    Guard("layer normalization forward", [&] { cpu::LayerNormForward(threads_, rows, columns, epsilon, x, gamma, beta, mean, variance, y); });
  }
  void LayerNormBackward(std::int64_t rows, std::int64_t columns, double epsilon, In x, In gamma, In mean, In variance, In dy, Out dx, Out dgamma,
                         Out dbeta) override {
    Guard("layer normalization backward",
          [&] { cpu::LayerNormBackward(threads_, rows, columns, epsilon, x, gamma, mean, variance, dy, dx, dgamma, dbeta); });
  }
  void GlobalAveragePoolForward(std::int64_t batch, std::int64_t positions, std::int64_t channels, In x, Out y) override {
    Guard("global average pooling forward", [&] { cpu::GlobalAveragePoolForward(threads_, batch, positions, channels, x, y); });
  }
  void GlobalAveragePoolBackward(std::int64_t batch, std::int64_t positions, std::int64_t channels, In dy, Out dx) override {
    Guard("global average pooling backward", [&] { cpu::GlobalAveragePoolBackward(threads_, batch, positions, channels, dy, dx); });
  }

 private:
  // The border to oneDNN, which throws: the first error is kept for TakeError.
  template <typename Body>
  void Guard(absl::string_view what, Body body) {
    cpu::SetTeamSize(threads_);
    try {
      body();
    } catch (const dnnl::error& error) {
      const bool memory = error.status == dnnl_out_of_memory;
      Fail(memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal, what,
           absl::StrCat(error.what(), " (oneDNN status ", static_cast<int>(error.status), ")"));
    } catch (const std::bad_alloc&) {
      Fail(absl::StatusCode::kResourceExhausted, what, "no memory");
    }
  }
  void Fail(absl::StatusCode code, absl::string_view what, absl::string_view why) {
    if (error_.ok()) error_ = absl::Status(code, absl::StrCat("backend could not compute: primitive=", what, " cause=", why));
  }

  // c[m,n] = op(a) op(b), row-major, the leading dimensions as stored.
  void Multiply(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, In a, std::int64_t a_row, In b,
                std::int64_t b_row, Out c, std::int64_t c_row) {
    const dnnl::status status = dnnl::sgemm(transpose_a, transpose_b, m, n, k, 1.0f, a.data(), a_row, b.data(), b_row, 0.0f, c.data(), c_row);
    if (status != dnnl::status::success) throw dnnl::error(static_cast<dnnl_status_t>(status), "matrix product");
  }

  void Activate(Activation activation, std::int64_t rows, std::int64_t columns, Out y) {
    if (activation != Activation::kLinear) cpu::ActivationForward(threads_, activation, rows, columns, y, y);
  }

  // oneDNN's fused relu turns NaN into 0, which would hide a diverged model. So relu is fused where no NaN can arise: all
  // operands are finite and no partial sum can leave float's range. Looking at x costs a fraction of a pass over y.
  bool CannotOverflow(const Conv2dShape& s, In x, In w, In b) const {
    const double products = static_cast<double>(s.kernel_h * s.kernel_w * s.in_c);
    const double bound =
        products * cpu::LargestMagnitude(threads_, x) * cpu::LargestMagnitude(threads_, w) + (b.empty() ? 0.0 : cpu::LargestMagnitude(threads_, b));
    return bound < 0.5 * static_cast<double>(std::numeric_limits<float>::max());
  }

  cpu::Convolution& PlanOf(const Conv2dShape& shape, bool with_bias, bool with_relu) {
    const auto key = std::make_tuple(shape, with_bias, with_relu);
    auto found = convolutions_.find(key);
    if (found == convolutions_.end()) {
      auto plan = std::make_unique<cpu::Convolution>(shape, with_bias, with_relu, engine_, stream_);
      if (convolutions_.size() >= kPlansMax) convolutions_.clear();
      found = convolutions_.emplace(key, std::move(plan)).first;
    }
    return *found->second;
  }

  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<std::tuple<Conv2dShape, bool, bool>, std::unique_ptr<cpu::Convolution>> convolutions_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(int threads, bool bind) {
  if (threads < 1 || threads > kThreadsMax) {
    return UserError(absl::InvalidArgumentError(absl::StrCat("threads out of range: want=1..", kThreadsMax, " got=", threads)));
  }
  try {
    auto made = std::make_unique<CpuBackend>(threads);
    if (bind) cpu::BindTeam(threads);
    return made;
  } catch (const dnnl::error& error) {
    return absl::UnavailableError(absl::StrCat("oneDNN has no CPU engine here: cause=", error.what()));
  }
}

}  // namespace evergrad::worker
